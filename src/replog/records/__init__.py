"""What the metastore holds: keys (`paths`), and the records of ledgers, logs and bookies as JSON."""
