"""The dead letters of a pipeline: find, replay, export and purge them.

``DeadLetters`` is the entry point. A replay loses no dead letter and sends none twice, whatever is
killed and however late it is resumed; ``chain`` explains how. Operations, the command line and the
web UI import it. Start with ``letters``.
"""

from ebbflow.deadletters.filters import LetterFilter, StoredLetter
from ebbflow.deadletters.letters import DeadLetters, LetterPage
from ebbflow.deadletters.replay import ReplayResult
from ebbflow.deadletters.transforms import LetterEdit
from ebbflow.engine.dead_letter import EarlierDeath, Letter

__all__ = [
    "DeadLetters",
    "EarlierDeath",
    "Letter",
    "LetterEdit",
    "LetterFilter",
    "LetterPage",
    "ReplayResult",
    "StoredLetter",
]
