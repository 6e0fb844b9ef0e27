"""What tests of several folders share: servers that are started once for all of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ebbflow.spark.session import open_session
from tests.disk import small_disk, tell_what_is_missing
from tests.kafka import fixture
from tests.kafka.fixture import kafka

__all__ = ["kafka", "small_disk"]


def pytest_configure() -> None:
    """Hear signals although whoever started the tests ignores them, as nohup and ``&`` do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what could not be tested on this machine."""
    fixture.tell_what_is_missing(terminalreporter)
    tell_what_is_missing(terminalreporter)


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of this process; a second one would be the same under another name.

    It has slots to spare: tasks of a run that a test cut short may hold some for a while.
    """
    with open_session(
        "tests", "local[40]", 10, tmp_path_factory.mktemp("spark"), {}, None
    ) as spark:
        yield spark


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where modules are looked for is as before after each test, for tests in any order."""
    monkeypatch.setattr(sys, "path", sys.path[:])
