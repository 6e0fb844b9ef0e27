"""Reports about chunks: the observers of the chunk loop, and the driver's side of them.

Tasks, the driver and the tools that show a pipeline use it; the engine calls observers without
knowing which there are. Start with ``events``.
"""
