"""A small web server on asyncio, for sources that receive requests and for the web UI.

It knows nothing about pipelines and imports only ``domain`` and ``nats``. Start with ``app`` for
requests and replies, with ``connection`` for HTTP itself.
"""
