"""Ways from clients to bookies, each registered through `replog_transports`."""
