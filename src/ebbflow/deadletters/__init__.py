"""The dead letters of a pipeline: find, replay, export and purge them.

``DeadLetters`` is the way in. A replay is exact: 0 lost, 0 twice, whatever is killed and however
long it takes until it is continued. ``chain`` says how. Operations, the command line and the web UI
import it. Start with ``letters``.
"""

from ebbflow.deadletters.filters import LetterFilter, StoredLetter, describe_letter
from ebbflow.deadletters.letters import Choice, DeadLetters, LetterPage, Which
from ebbflow.deadletters.replay import ReplayResult
from ebbflow.deadletters.transforms import LetterEdit, Transform
from ebbflow.engine.dead_letter import EarlierDeath, Letter

__all__ = [
    "Choice",
    "DeadLetters",
    "EarlierDeath",
    "Letter",
    "LetterEdit",
    "LetterFilter",
    "LetterPage",
    "ReplayResult",
    "StoredLetter",
    "Transform",
    "Which",
    "describe_letter",
]
