"""Support for code written for pynumaflow, run unchanged in the worker, without gRPC.

Connectors, ``spec``, ``runtime`` and ``testing`` import it where they handle user code. Start with
``adapters``.
"""
