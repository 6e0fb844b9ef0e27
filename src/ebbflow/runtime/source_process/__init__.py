"""A source in its own process, which outlives the epochs of its task.

Only ``runtime`` imports it, and the conformance suite. Start with ``protocol``: what task and
process say to each other.
"""
