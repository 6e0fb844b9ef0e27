"""NATS as sources and sinks: plain subjects, and JetStream streams.

The registry of connectors loads ``spec``; no other package imports this one. Start with ``spec``,
then ``jetstream_source``.
"""
