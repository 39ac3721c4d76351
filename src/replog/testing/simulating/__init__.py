"""The engine of `replog.testing.simulate`: threads, network, disks, metastore and processes on virtual time."""
