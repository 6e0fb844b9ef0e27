"""Kafka as a source and as a sink; needs the extra ``ebbflow[kafka]``.

The registry of connectors loads ``spec``, and Pulsar uses ``records``. Start with ``source``.
"""
