"""Pipelines whose dead letters are written by hand, on a real NATS server."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ebbflow.deadletters import DeadLetters
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.link import Link
from ebbflow.nats.locate import start_embedded
from ebbflow.nats.publish import publish
from ebbflow.nats.stored import StoredMessage, read_subject
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names

NOON = datetime(2026, 5, 17, 12, 0, 0, 250_000, tzinfo=UTC)

LETTER = Letter(
    id="in-7",
    vertex="enrich",
    value=b'{"order": 7}',
    reason="ValueError",
    error="ValueError: no customer",
    traceback="Traceback (most recent call last):\n  …\nValueError: no customer\n",
    deliveries=6,
    first_seen=NOON,
    last_seen=NOON.replace(minute=1),
    event_time=NOON.replace(hour=11),
    keys=["berlin", "7"],
    headers={"trace": "abc"},
    metadata={"shop": {"shelf": b"\x00\x01"}},
)

_numbers = itertools.count()


class Written:
    """A pipeline that never ran: its streams exist and its dead letters come from the test."""

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.names = Names(name)
        self._ensure(catalogue.dead_letter_config(self.names))

    def _ensure(self, config: dict[str, object]) -> None:
        self.link.run(provision.ensure(self.link.client, config))

    def add_vertex(self, vertex: str, partitions: int = 1) -> None:
        for partition in range(partitions):
            self._ensure(catalogue.redelivery_config(self.names, vertex, partition))

    def bury(self, letter: Letter = LETTER, **changes: object) -> int:
        """Publish a dead letter; returns its number."""
        letter = replace(letter, **changes)
        subject, headers = self.names.dead_letter_subject(letter.vertex), letter.to_headers()
        return self.link.run(publish(self.link.client, subject, letter.value, headers)).seq

    def due(self, vertex: str = "enrich", partition: int = 0) -> list[StoredMessage]:
        """The messages that were sent back to a partition."""
        stream = self.names.redelivery(vertex, partition)
        subject = self.names.due_subject(vertex, partition)
        return self.link.run(read_subject(self.link.client, stream, subject))

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters(self.link, self.name)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder whose server runs, as if a pipeline did."""
    folder = tmp_path_factory.mktemp("cli") / "state"
    with start_embedded(folder):
        yield folder


@pytest.fixture(scope="session")
def link(state: Path) -> Iterator[Link]:
    from ebbflow.nats.locate import open_link_to_pipeline

    with open_link_to_pipeline(state, None) as link:
        yield link


@pytest.fixture
def pipeline(link: Link) -> Written:
    """A pipeline of its own for the test, with one vertex."""
    written = Written(link, f"orders-{next(_numbers)}")
    written.add_vertex("enrich")
    return written
