"""Google Pub/Sub as a source and a sink; needs the extra ``ebbflow[pubsub]``.

The registry of connectors loads ``spec``; no other package imports this one. Start with ``source``.
"""
