"""The rules: what happens to each message, and in which order; pure functions and plain records.

It imports only ``domain`` and uses neither Spark nor NATS nor a clock. Start with ``settlement``.
"""
