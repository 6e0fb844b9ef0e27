"""Pulsar as a source and as a sink; needs the extra ``ebbflow[pulsar]``.

The registry of connectors loads ``spec``; no other package imports this one. Start with ``source``.
"""
