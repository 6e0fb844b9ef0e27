"""A small web server on asyncio: for sources that take requests in, and for the web UI.

It knows nothing of pipelines and imports ``domain`` and ``nats`` only. Start with ``app`` for
requests and replies, with ``connection`` for HTTP itself.
"""
