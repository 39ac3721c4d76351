"""Small wrong changes of the source, and the tests that see them: what `docs/mutation-score.md` tells."""
