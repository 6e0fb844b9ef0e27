"""Code that is written for pynumaflow, run in the worker as it is, without gRPC.

Connectors, ``spec``, ``runtime`` and ``testing`` import it where they look at user code. Start with
``adapters``.
"""
