"""What tests of several folders share: servers that are started once for all of them."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbflow.spark.session import SessionPlan, open_session
from tests import disk, environments
from tests.connectors.kafka import fixture
from tests.connectors.kafka.fixture import kafka
from tests.connectors.postgres import fixture as postgres_fixture
from tests.connectors.postgres.fixture import postgres
from tests.connectors.pubsub import fixture as pubsub_fixture
from tests.connectors.pubsub.fixture import pubsub, pubsub_server
from tests.connectors.pulsar import fixture as pulsar_fixture
from tests.connectors.pulsar.fixture import pulsar_broker, pulsar_of_session
from tests.connectors.sqs import fixture as sqs_fixture
from tests.connectors.sqs.fixture import sqs, sqs_server
from tests.disk import small_disk
from tests.long_tests import languages_to_compile, skip_long_tests
from tests.nats.fixtures import authority, ensure, link, names
from tests.nats.outside import outside
from tests.numaflow.functions import fixture as functions
from tests.numaflow.functions.fixture import function_in
from tests.sharing import SharedServers, import_own_share_first
from tests.spark.runs import another_journal, journal, run, server_letters, store
from tests.thorough import register_profiles

__all__ = [
    "another_journal",
    "authority",
    "ensure",
    "function_in",
    "journal",
    "kafka",
    "link",
    "names",
    "outside",
    "postgres",
    "pubsub",
    "pubsub_server",
    "pulsar_broker",
    "pulsar_of_session",
    "run",
    "server_letters",
    "small_disk",
    "sqs",
    "sqs_server",
    "store",
]

pytest_plugins = ["tests.leftovers"]

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--seed`` shuffles; without a number it chooses one, which is printed."""
    parser.addoption("--seed", nargs="?", type=int, const=-1, help="run in a random order")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says how to repeat the order of this run."""
    seed = config.getoption("seed")
    return None if seed is None else f"random order: --seed {seed} repeats it"


def pytest_configure(config: pytest.Config) -> None:
    """Handles signals even if the parent process ignores them, as nohup and ``&`` do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    # Many tests start processes. With this each would compile what it imports, which is most of
    # the work of a short one.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if config.option.seed == -1:  # workers receive the number that is chosen here
        config.option.seed = random.randrange(10_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedServers:
    """Distributes files that need the same server together."""
    return SharedServers(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Makes each worker compile its part of the tests."""
    if hasattr(session.config, "workerinput"):
        import_own_share_first(session.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out long tests, shuffles on demand, and puts the files with slow ones first.

    Workers receive whole files in this order. A long file at the end would keep one of them
    busy while the others have nothing left to do.
    """
    skip_long_tests(items)
    if (seed := config.getoption("seed")) is not None:
        shuffle(items, random.Random(seed))
    slow = {item.path for item in items if _is_slow(item)}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the functions that the chosen tests need; exempts the tests from garbage collection.

    Seven thousand tests are many objects, which all stay: to scan them again and again
    takes a twentieth of the time of a worker.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)
    if not session.config.option.collectonly:
        functions.build_ahead(languages_to_compile(session.items))


def shuffle(items: list[pytest.Item], chance: random.Random) -> None:
    """Puts files, and the functions of each file, in a random order.

    The cases of one function keep their order: the rules for connectors are stages of one trial.
    So do the functions of a file that has the marker ``story``.
    """
    files: dict[Path, dict[str, list[pytest.Item]]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        files.setdefault(item.path, {}).setdefault(name, []).append(item)
    order = [list(file.values()) for file in files.values()]
    chance.shuffle(order)
    for file in order:
        if file[0][0].get_closest_marker("story") is None:
            chance.shuffle(file)
    items[:] = [item for file in order for cases in file for item in cases]


def _is_slow(item: pytest.Item) -> bool:
    on_spark = "spark" in getattr(item, "fixturenames", ())
    return on_spark or item.get_closest_marker("slow") is not None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Reports what could not be tested on this machine."""
    for part in (
        fixture,
        postgres_fixture,
        pulsar_fixture,
        sqs_fixture,
        pubsub_fixture,
        disk,
        environments,
        functions,
    ):
        part.report_what_is_missing(terminalreporter)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of this process; a second one would be the same under another name.

    It has slots to spare: tasks of a run that a test cut short may hold some for a while.
    """
    plan = SessionPlan("tests", "local[40]", 10, tmp_path_factory.mktemp("spark"))
    with open_session(plan) as session:
        # The first job takes the preloaded process. Workers of data sources must not be the first.
        session.sparkContext.parallelize([0], 1).map(str).collect()
        yield session


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores ``sys.path`` after each test, so that tests can run in any order."""
    monkeypatch.setattr(sys, "path", sys.path[:])
