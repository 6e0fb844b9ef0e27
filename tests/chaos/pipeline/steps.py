"""User code of the chaos test: decides at random on each delivery, and records what it did."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path

from ebbflow import Message, NackOptions, Response

JOURNAL = Path(os.environ.get("CHAOS_JOURNAL", "journal"))


def number_of(datum):
    return json.loads(datum.value)["value"]


def some_nack(**options):
    return NackOptions(delay=random.choice([None, "50ms", "700ms"]), reason="not now", **options)


def work(datum):
    """Nack 5 %; every 1000th message always fails."""
    if number_of(datum) % 1000 == 999:
        raise ValueError("never")
    if random.random() < 0.05:
        return Message.to_nack(some_nack())
    return Message(datum.value)


def work_the_same(datum):
    """Decides by number and delivery alone: nacks, exceptions, and two kinds of dead letters."""
    number = number_of(datum)
    if number % 1000 == 998:
        raise ValueError("never")
    chance = zlib.crc32(datum.id.encode())
    if number % 1000 == 999:
        return Message.to_nack(NackOptions(delay=20 + chance % 900, max_deliveries=2))
    if datum.deliveries <= chance % 4:
        if chance % 7 == 0:
            raise RuntimeError("once more")
        return Message.to_nack(NackOptions(delay=20 + chance % 1500, reason="not now"))
    return Message(datum.value)


def check_the_same(datum):
    """Nacks one in thirty on its first delivery, some of them with a delay."""
    chance = zlib.crc32(datum.id.encode())
    if datum.deliveries == 1 and chance % 30 == 0:
        return Message.to_nack(NackOptions(delay=chance % 3 * 400))
    return Message(datum.value)


def store_the_same(data):
    """Nacks one in fifty on its first delivery, and writes the rest."""
    again = {d.id for d in data if d.deliveries == 1 and zlib.crc32(d.id.encode()) % 50 == 0}
    write([datum for datum in data if datum.id not in again])
    return [Response.nack(d.id) if d.id in again else Response.ok(d.id) for d in data]


def write(data):
    """Append the numbers to this process's file, on disk before they are acknowledged."""
    JOURNAL.mkdir(exist_ok=True)
    lines = "".join(f"{number_of(datum)}\n" for datum in data)
    with open(JOURNAL / str(os.getpid()), "a", encoding="utf-8") as file:
        file.write(lines)


def store(data):
    """Nack 2 %, fail 2 %, fall back 1 %, write the rest."""
    responses = [answer(datum) for datum in data]
    ok = {response.id for response in responses if response.status.name == "OK"}
    write([datum for datum in data if datum.id in ok])
    return responses


def answer(datum):
    chance = random.random()
    if chance < 0.02:
        return Response.nack(datum.id, some_nack())
    if chance < 0.04:
        return Response.failure(datum.id, "busy")
    return Response.fallback(datum.id) if chance < 0.05 else Response.ok(datum.id)


def fallback(data):
    """Accepts everything."""
    write(data)
    return [Response.ok(datum.id) for datum in data]
