"""Spark: the session, resident tasks in epochs, and the driver that keeps them running.

Builders, the data source, ``testing`` and the command line import it. In the layers below, only
``connectors/spark`` and the pickling of user code mention PySpark. Start with ``run``.
"""
