"""Planning which sequences to read next: on the driver, with the leader's word.

A micro-batch may hold only so many messages. Sequences are easy to count and messages are not: some
are deleted, some have another subject. So its end is searched for, with few questions, and it is
never too far.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from ebbflow.datasource.leader import Facts, Leader
from ebbflow.datasource.options import LATEST, ReadOptions
from ebbflow.errors import DataSourceError
from ebbflow.nats.address import Addresses
from ebbflow.nats.link import Link
from ebbflow.nats.locate import NATS_URL

Count = Callable[[int], Awaitable[int]]
"""Counts the messages from the start of the batch up to and including a sequence."""

_QUESTIONS = 4
_GOOD_ENOUGH = 0.8


def connect(server: Addresses) -> Link:
    """Opens a connection, on the driver or on a worker."""
    return Link(server, f"Start it, or correct the option url or {NATS_URL}.")


async def find_beginning(leader: Leader, options: ReadOptions, now: Facts) -> int:
    """Returns the sequence behind which a read begins."""
    start = options.start
    if isinstance(start, datetime):
        first = await leader.find_first_since(start)
        return now.last if first is None else first - 1
    if isinstance(start, str):
        return now.last if start == LATEST else now.first - 1
    if start > now.last + 1:
        raise DataSourceError(
            f"Option startingSequence is {start}, and {now.stream} ends at {now.last}.",
            "Write earliest, latest or a number that is there.",
        )
    return start - 1


def find_ending(options: ReadOptions, now: Facts) -> int:
    """Returns the sequence with which a batch ends."""
    if options.end is None:
        return now.last
    if options.end > now.last:
        raise DataSourceError(
            f"Option endingSequence is {options.end}, and {now.stream} ends at {now.last}.",
            "Write latest or a number that is there.",
        )
    return options.end


async def find_end_of_batch(leader: Leader, after: int, last: int, most: int) -> int:
    """Returns the sequence with which a micro-batch of at most so many messages ends."""
    if last - after <= most:
        return last
    first = await leader.find_next_after(after)
    if first is None or first > last:
        return last

    async def count(until: int) -> int:
        # In this order: what arrives in between is counted once too often, never too seldom.
        behind = await leader.count_after(until)
        return await leader.count_after(after) - behind

    return await search_end(first - 1, last, most, count)


async def search_end(before: int, last: int, most: int, count: Count) -> int:
    """Returns a sequence up to which there are at most ``most`` messages, and seldom far fewer.

    ``before`` is the sequence right before the first message, ``last`` that of the last one.
    """
    near, far = min(before + most, last), last + 1  # as many messages as sequences, at most
    guess = last
    for _ in range(_QUESTIONS):
        guess = max(near + 1, min(guess, far - 1))
        if guess >= far:
            break
        messages = await count(guess)
        if messages > most:
            far = guess
        else:
            near = guess
            if messages >= most * _GOOD_ENOUGH:
                break
        # As if messages lay evenly; there is at least one behind ``before``.
        guess = before + (guess - before) * most // max(messages, 1)
    return near
