"""Where bookies keep their ledgers: the built-in storages."""
