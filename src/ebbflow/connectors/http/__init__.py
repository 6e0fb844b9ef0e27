"""HTTP as a source and as a sink.

The registry of connectors loads ``spec``. Only ``listening`` also imports from this package, for
types. Start with ``source``.
"""
