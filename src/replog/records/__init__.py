"""The contents of the metastore: keys (`paths`), and the records of ledgers, logs and bookies as JSON."""
