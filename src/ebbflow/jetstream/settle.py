"""Carrying out a settlement: its publications on JetStream, stage after stage, all confirmed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from nats.aio.client import Client

from ebbflow.core.settlement import Publication, Settlement, Stage
from ebbflow.frames import fingerprint
from ebbflow.jetstream.names import Names
from ebbflow.jetstream.publisher import BUFFER, publish

IN_FLIGHT = 256


async def publish_all(client: Client, names: Names, settlement: Settlement) -> None:
    """Return when everything is confirmed; the first error that cannot be waited out is raised."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    for stage in settlement.stages():
        try:
            async with asyncio.TaskGroup() as group:
                for publication in stage:
                    group.create_task(_publish(client, names, publication, gate))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None


async def _publish(
    client: Client, names: Names, publication: Publication, gate: asyncio.Semaphore
) -> None:
    subject, headers = address(names, publication)
    async with gate:
        await publish(
            client, subject, publication.payload, headers, msg_id=publication.msg_id, retry=BUFFER
        )


def address(names: Names, publication: Publication) -> tuple[str, dict[str, str]]:
    """The subject a publication goes to, and its headers."""
    vertex, partition = publication.target, publication.partition
    if publication.stage is Stage.OUTPUT:
        return names.buffer_subject(vertex, partition), publication.headers
    if publication.stage is Stage.DEAD_LETTER:
        return names.dead_letter_subject(vertex), publication.headers
    due_subject = names.due_subject(vertex, partition)
    if publication.due is None:
        return due_subject, publication.headers
    schedule = {
        "Nats-Schedule": f"@at {rfc3339(publication.due)}",
        "Nats-Schedule-Target": due_subject,
    }
    # The subject must be this publication's own: a second schedule on it would replace the first.
    token = fingerprint([publication.msg_id])
    return names.later_subject(vertex, partition, token), publication.headers | schedule


def rfc3339(epoch_ms: int) -> str:
    """The time as the server's schedules want it."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
