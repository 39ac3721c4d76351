"""Tests of the comparison, outside the gate: `make test-peers`."""
