"""User code between Kafka and a journal: one record in twenty is redelivered later."""

from __future__ import annotations

import os
import random
from pathlib import Path

from ebbflow import Message, Response, nack

JOURNAL = Path(os.environ.get("CHAOS_JOURNAL", "journal"))


def some_later(datum):
    """Nack 5 % of all deliveries, for up to two seconds."""
    if random.random() < 0.05:
        nack("not now", delay=f"{random.randrange(2_000)}ms")
    return Message(datum.value)


def store(data):
    """Append the numbers to this process's file, on disk before they are acknowledged."""
    JOURNAL.mkdir(exist_ok=True)
    with open(JOURNAL / str(os.getpid()), "a", encoding="utf-8") as file:
        file.write("".join(f"{datum.value.decode()}\n" for datum in data))
    return [Response.ok(datum.id) for datum in data]
