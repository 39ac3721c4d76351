"""Bookies in processes of their own, on loopback: what appends and scans cost over TCP."""
