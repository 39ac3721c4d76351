"""Maps with CAS, each registered through `replog_metastores`."""
