"""NATS as sources and as sinks: plain subjects, and streams of JetStream.

The registry of connectors loads ``spec``; no other package imports this one. Start with ``spec``,
then ``jetstream_source``.
"""
