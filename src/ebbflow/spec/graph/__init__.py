"""The graph of a pipeline as people see it: what leads where, laid out and drawn."""
