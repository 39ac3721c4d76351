"""How long tests may take: plugins of pytest that `tests/conftest.py` loads."""
