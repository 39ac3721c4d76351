"""Logs made of ledgers: taking over, writing and rolling, reading across ledgers, trimming."""
