"""NATS and JetStream: logins, connections, publishing, pulling, the embedded server.

It knows nothing of pipelines and imports ``domain`` only; every package that talks to a server
imports it. Start with ``link``.
"""
