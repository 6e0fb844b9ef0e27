"""A source in a process of its own, which outlives the epochs of its task."""
