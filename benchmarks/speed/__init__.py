"""The guard of the hot paths' speed: what they execute for an entry, compared with committed lines. See `make check-speed`."""
