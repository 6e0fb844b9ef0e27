"""Pipelines that answer requests: a model, and a join with a table."""
