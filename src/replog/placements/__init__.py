"""Which bookies store what: the policies that come with replog."""
