"""User code of the chaos test: nacks at random, loses some for good, and writes down the rest."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from ebbflow import Message, NackOptions, Response

JOURNAL = Path(os.environ.get("CHAOS_JOURNAL", "journal"))


def number_of(datum):
    return json.loads(datum.value)["data"]["value"]


def work(datum):
    """Nack 5 %, decided anew on each delivery; every 1000th can never be done."""
    number = number_of(datum)
    if number % 1000 == 999:
        return Message.to_nack(NackOptions(delay="20ms", max_deliveries=2, reason="never"))
    if random.random() < 0.05:
        delay = random.choice([None, "50ms", "700ms"])
        return Message.to_nack(NackOptions(delay=delay, reason="not now"))
    return Message(datum.value)


def store(data):
    """Append the numbers to this process's file before answering for them."""
    JOURNAL.mkdir(exist_ok=True)
    lines = "".join(f"{number_of(datum)}\n" for datum in data)
    with open(JOURNAL / str(os.getpid()), "a", encoding="utf-8") as file:
        file.write(lines)
    return [Response.ok(datum.id) for datum in data]
