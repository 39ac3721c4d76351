"""A seeded simulator of the protocol floor."""
