"""The machines of a replicated metastore: one log among members, of which a majority agrees (rules Q1-Q14, Q17)."""
