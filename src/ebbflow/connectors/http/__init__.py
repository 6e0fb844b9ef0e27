"""HTTP as a source and as a sink.

The registry of connectors loads ``spec``; of other packages only ``listening`` imports a piece.
Start with ``source``.
"""
