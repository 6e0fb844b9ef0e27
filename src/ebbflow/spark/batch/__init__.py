"""Batch vertices: SQL, DataFrame functions and Spark sinks, batch by batch."""
