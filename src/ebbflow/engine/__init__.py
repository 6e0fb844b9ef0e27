"""The rules: what happens to each message, and in which order; pure functions and plain records.

It imports ``domain`` alone and has no Spark, no NATS and no clock. Start with
``settlement``.
"""
