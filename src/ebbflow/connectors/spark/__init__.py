"""Any format of Spark as a source and as a sink.

The registry of connectors loads ``spec``; ``spark`` uses ``vertex_session`` for its own sessions
and errors. Start with ``source``.
"""
