"""The types that all packages use: messages, outcomes, sources, errors, durations, processes.

Every other package may import this one; it imports none of them. Start with ``message``.
"""

__version__ = "0.1.0"
"""The version of Ebbflow; it is written nowhere else."""
