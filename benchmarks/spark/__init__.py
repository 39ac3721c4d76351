"""Spark: what writing and reading logs costs, next to a sink that only counts and a source whose batches are ready."""
