"""One cluster for the folder, repaired before each test; every test has its own names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from ebbflow.streams.names import Names
from tests.cluster.cluster import Cluster

_numbers = count()


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")).running() as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Cluster:
    """Three nodes that are up and have caught up."""
    nodes.heal()
    return nodes


@pytest.fixture
def names() -> Names:
    """Names of a pipeline that no other test uses."""
    return Names(f"p{next(_numbers)}")
