"""Pipelines to read, run and copy from."""
