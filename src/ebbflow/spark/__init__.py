"""Spark: the session, resident tasks in epochs, and the driver that keeps them running."""
