"""What is reported of chunks: the observers of the chunk loop, and the driver's side of them.

Tasks and the driver's run use it, and whatever shows people a pipeline; the engine calls observers
without knowing which there are. Start with ``events``.
"""
