"""replog: an embeddable replicated log."""
