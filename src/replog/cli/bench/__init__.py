"""`replog bench`: a load on a cluster, measured from where its clients are."""
