"""The engine beside Spark: plans, the chunk loop, calls of user code, events, sources."""
