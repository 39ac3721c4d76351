"""The client's shells: they drive the protocol's machines with trio, connections and a metastore."""
