"""Which sequences to read next: decided on the driver, with the leader's word."""

from __future__ import annotations

from datetime import datetime

from ebbflow.datasource.leader import Facts, Leader
from ebbflow.datasource.limit import limited
from ebbflow.datasource.options import LATEST, ReadOptions
from ebbflow.errors import DataSourceError
from ebbflow.nats.address import Addresses
from ebbflow.nats.link import Link
from ebbflow.nats.locate import NATS_URL


def connect(server: Addresses) -> Link:
    """A connection, on the driver or on a worker."""
    return Link(server, f"Start it, or correct the option url or {NATS_URL}.")


async def beginning(leader: Leader, options: ReadOptions, now: Facts) -> int:
    """The sequence behind which a read begins."""
    start = options.start
    if isinstance(start, datetime):
        found = await leader.first_since(start)
        return now.last if found is None else found - 1
    if isinstance(start, str):
        return now.last if start == LATEST else now.first - 1
    if start > now.last + 1:
        raise DataSourceError(
            f"Option startingSequence is {start}, and {now.stream} ends at {now.last}.",
            "Write earliest, latest or a number that is there.",
        )
    return start - 1


def ending(options: ReadOptions, now: Facts) -> int:
    """The sequence with which a batch ends."""
    if options.end is None:
        return now.last
    if options.end > now.last:
        raise DataSourceError(
            f"Option endingSequence is {options.end}, and {now.stream} ends at {now.last}.",
            "Write latest or a number that is there.",
        )
    return options.end


async def end_of_batch(leader: Leader, after: int, last: int, most: int) -> int:
    """The sequence with which a micro-batch of at most so many messages ends."""
    if last - after <= most:
        return last
    first = await leader.next_after(after)
    if first is None or first > last:
        return last

    async def count(until: int) -> int:
        # In this order: what arrives in between is counted once too often, never too seldom.
        behind = await leader.count_after(until)
        return await leader.count_after(after) - behind

    return await limited(first - 1, last, most, count)
