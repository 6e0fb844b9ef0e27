"""Sinks: one module per connector, each a function that decides about every row of a chunk."""
