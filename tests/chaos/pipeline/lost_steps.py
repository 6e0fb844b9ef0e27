"""User code of the pipeline whose executor is lost: the sink records what arrived, and when."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ebbflow import Message, Response

JOURNAL = Path(os.environ["LOST_JOURNAL"])


def work(datum):
    return Message(datum.value)


class Store:
    """One file per worker, named after its process; each line has a time and a number."""

    def open(self):
        self._write(["opened"])

    def __call__(self, data):
        self._write([json.loads(datum.value)["value"] for datum in data])
        return [Response.ok(datum.id) for datum in data]

    def _write(self, words):
        now = time.time()
        with open(JOURNAL / str(os.getpid()), "a", encoding="utf-8") as file:
            file.write("".join(f"{now:.3f} {word}\n" for word in words))
