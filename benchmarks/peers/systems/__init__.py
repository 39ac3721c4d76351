"""One module for each system: an adapter, and what only it needs."""
