"""A bookie: serves ledgers from a storage, with one commit thread, and collects deleted ledgers."""
