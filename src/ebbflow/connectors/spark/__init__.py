"""Any format of Spark as a source and as a sink."""
