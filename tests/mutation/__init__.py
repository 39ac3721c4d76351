"""Small wrong changes of the source, and the tests that see them: what `docs/reference/mutation-score.md` tells."""
