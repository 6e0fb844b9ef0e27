"""The audit table: rows of the stream, written by Spark into any of its formats, and read again.

The run writes it, and operations read it. Start with ``files``, which says how a table lies on
disk.
"""
