"""Batch vertices: SQL, DataFrame functions and Spark sinks, batch by batch.

Only ``spark`` imports it: the run checks such a vertex, then the supervisor runs it. Start with
``vertex``.
"""
