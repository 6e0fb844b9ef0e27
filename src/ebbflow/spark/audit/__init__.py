"""The audit table: rows of the audit stream, written by Spark in any of its formats, and queries.

The run writes it, and operations read it. Start with ``files``, which describes the files of a
table.
"""
