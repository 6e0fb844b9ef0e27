"""A source in its own process, which outlives the epochs of its task.

Only ``runtime`` and ``testing`` import it. Start with ``protocol``: the messages between task and
process.
"""
