"""The audit table: rows of the stream, written by Spark into any of its formats."""
