"""The streams of a pipeline in NATS, and how they are read and written.

Tasks, the driver and every tool that inspects a pipeline import it; no other package names streams
and subjects. Start with ``catalogue``, which has an entry for each kind of stream.
"""
