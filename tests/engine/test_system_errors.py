"""Which errors say that a system is down, and which are the fault of the message."""

from __future__ import annotations

import errno
import http.client
import socket
import sqlite3
import urllib.error
from email.message import Message as Headers

import aiohttp
import nats.errors
import pytest

from ebbflow import Unavailable
from ebbflow.domain.errors import NoStreamResponse
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.system_errors import LISTED, SystemErrors, named


def http_error(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://host/", status, "no", Headers(), None)


def raised_from(cause: BaseException) -> BaseException:
    try:
        raise RuntimeError("cannot write") from cause
    except RuntimeError as error:
        return error


class Wrapped(Exception):
    """As in SQLAlchemy: the names of PEP 249 in a class tree of its own."""


class DatabaseError(Wrapped):
    pass


class OperationalError(DatabaseError):
    pass


class Down(Exception):
    pass


class Response:
    def __init__(self, status: int) -> None:
        self.status_code = status


class StatusError(Exception):
    """As in requests and httpx."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.response = Response(status)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("the database"),
        ConnectionRefusedError(),
        BrokenPipeError(),
        TimeoutError(),
        socket.gaierror(-2, "Name or service not known"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        http.client.RemoteDisconnected(),
        urllib.error.URLError(ConnectionRefusedError()),
        http_error(503),
        StatusError(502),
        sqlite3.OperationalError("database is locked"),
        sqlite3.InterfaceError(),
        OperationalError(),
        aiohttp.ServerDisconnectedError(),
        nats.errors.NoServersError(),
        NoStreamResponse("s", 1, 1.0),
        raised_from(ConnectionResetError()),
        ExceptionGroup("all", [TimeoutError(), ConnectionError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_these_errors_mean_that_a_system_is_down(error):
    assert LISTED.means_down(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no number"),
        FileNotFoundError("a.csv"),
        PermissionError("a.csv"),
        OSError(errno.ENOSPC, "No space left on device"),
        http_error(404),
        http_error(500),
        StatusError(422),
        sqlite3.IntegrityError("UNIQUE constraint failed"),
        sqlite3.DataError(),
        KeyError("OperationalError"),
        type("OperationalError", (Exception,), {})(),
        raised_from(ValueError()),
        ExceptionGroup("some", [TimeoutError(), ValueError()]),
        Down(),
    ],
    ids=lambda error: f"{type(error).__name__}-{error}",
)
def test_these_errors_are_the_fault_of_the_message(error):
    assert not LISTED.means_down(error)


def test_an_error_that_was_being_handled_but_is_not_the_cause_does_not_count():
    def convert():
        try:
            raise ConnectionError
        except ConnectionError:
            raise ValueError("bad") from None

    with pytest.raises(ValueError, match="bad") as raised:
        convert()
    assert not LISTED.means_down(raised.value)


def test_the_list_can_be_extended_by_classes_and_by_names():
    assert SystemErrors(named([Down])).means_down(Down())
    assert SystemErrors(named([f"{__name__}:Down"])).means_down(Down())
    assert SystemErrors(named(["tests:Down"])).means_down(Down()), "of a module inside that package"
    assert not SystemErrors(named(["elsewhere:Down"])).means_down(Down())


def test_an_outage_has_the_name_and_the_wait_that_user_code_set():
    assert SystemOutage.of(Unavailable("the database", "2s")) == SystemOutage(
        "the database", True, True, 2_000
    )
    assert SystemOutage.of(TimeoutError("slow")) == SystemOutage(
        "TimeoutError: slow", True, False, None
    )
