"""Fixtures of the publishers' tests: a subject of their own, and listeners for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.publishing import Publisher
from ebbflow.streams import provision
from ebbflow.streams.names import Names
from tests.nats.listener import Listener
from tests.nats.securing import address


class TestStream:
    """A stream that is created when this is called."""

    __test__ = False

    def __init__(self, link, name, subject):
        self._link = link
        self.name = name
        self._subject = subject

    def __call__(self, **config):
        base = {"name": self.name, "subjects": [self._subject], "storage": "memory"}
        self._link.run(provision.ensure(self._link.client, base | config))

    @property
    def messages(self):
        return self._link.run(api.read_state(self._link.client, self.name)).messages


@pytest.fixture(scope="session")
def url(link: Link) -> str:
    return address(link.server)


@pytest.fixture(scope="session")
def publisher(url: str) -> Iterator[Publisher]:
    with Publisher(url) as publisher:
        yield publisher


@pytest.fixture
def subject(names: Names) -> str:
    return names.buffer_subject("v", 0)


@pytest.fixture
def stream(link: Link, names: Names, subject: str) -> TestStream:
    return TestStream(link, names.buffer("v", 0), subject)


@pytest.fixture
def silent(link: Link, subject: str) -> Iterator[Listener]:
    listener = Listener(link, subject)
    yield listener
    listener.stop()
