"""`replog cluster`: a cluster of bookie processes on this machine, for development."""
