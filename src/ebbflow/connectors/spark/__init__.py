"""Any Spark format as a source and as a sink.

The registry of connectors loads ``spec``; ``ebbflow.spark`` uses ``vertex_session`` for its
sessions and errors. Start with ``source``.
"""
