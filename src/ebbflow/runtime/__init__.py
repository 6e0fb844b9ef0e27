"""The engine on NATS, without Spark: plans, the chunk loop, calls of user code, sources.

``spark`` and the layers above import it; it imports neither ``spark`` nor PySpark. Start with
``loop``, which takes, decides and settles one chunk after another.
"""
