"""The words everybody uses: messages, outcomes, nacks, sources, errors, durations, processes.

Every other package may import this one; it imports none of them. Start with ``message``.
"""

__version__ = "0.1.0"
"""The one place where the version of Ebbflow is written."""
