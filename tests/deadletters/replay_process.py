"""A replay in a process of its own, to be killed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from ebbflow.deadletters import DeadLetters, LetterFilter
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.locate import open_link_to_pipeline


def mend(letter: Letter) -> Letter:
    """Changes the value, and keys as well: they would choose another partition."""
    return replace(letter, value=letter.value + b"!", keys=[letter.id])


def main(state: str, pipeline: str, rate: float, up_to: int) -> None:
    """Replays up to a number, and prints each step."""
    with open_link_to_pipeline(Path(state), None) as link:
        letters = DeadLetters(link, pipeline)
        print("begins", flush=True)
        letters.replay(
            LetterFilter(up_to=up_to),
            transform=mend,
            rate=rate or None,
            progress=lambda result: print(result.sent, flush=True),
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
