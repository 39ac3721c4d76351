"""Neither protocol nor plugin: nurseries, threads, child processes, chance, histograms, LMDB environments, leases."""
