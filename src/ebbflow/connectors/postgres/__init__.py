"""Postgres as a sink and as a queue to read from; needs the extra ``ebbflow[postgres]``.

The registry of connectors loads ``spec``; no other package imports this one. Start with ``sink``.
"""
