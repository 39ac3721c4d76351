"""Where the entries of archived fragments can be: the built-in archive."""
