"""Numaflow's gRPC protocol, through which functions in any language take part in a pipeline.

A function runs in its own process next to the task that calls it and listens on a unix socket.
Connectors, ``spec`` and the command line import it, mostly for names and plans. Start with
``services``, then ``function_session``.
"""
