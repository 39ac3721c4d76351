"""What stands in the metastore: ledgers, logs and bookies, and how each is written there."""
