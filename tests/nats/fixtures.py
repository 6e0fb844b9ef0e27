"""A real nats-server for all tests of a process, with streams of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.streams import provision
from ebbflow.streams.names import Names
from tests.nats.securing import Authority

_numbers = count()


@pytest.fixture(scope="session")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    with start_embedded(tmp_path_factory.mktemp("state")) as server, open_link(server) as link:
        yield link


@pytest.fixture(scope="session")
def authority() -> Authority:
    """The authority that issues certificates."""
    return Authority()


@pytest.fixture
def names() -> Names:
    """Names of a pipeline that no other test uses."""
    return Names(f"p{next(_numbers)}")


@pytest.fixture
def ensure(link: Link) -> Any:

    def make(config: dict[str, Any]) -> None:
        link.run(provision.ensure(link.client, config))

    return make
