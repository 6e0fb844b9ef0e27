"""A session with a function: its process, a connection, and its streams after their handshake.

If a session cannot be opened, the function is ``Unavailable`` and no message is penalised. A
session that breaks is reopened with a new process: Numaflow's SDKs end their process after any
failure, and a call to the old process would reach it during its shutdown.

``ask_all`` decides the outcomes of messages when the function breaks in the middle of a call.
Answered messages keep their answers. The function is restarted at once and receives the others one
at a time, which shows the message on which it breaks again: that message is to blame and fails as
if user code had raised. A function that exceeds its time limit is stopped and restarted in the same
way. If it cannot be restarted, no message is penalised. This always terminates: each message is
sent at most twice, and a function that keeps breaking is not called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ebbflow.domain.errors import CallTimeout, SetupError, StreamBroken, Unavailable
from ebbflow.engine.blame import CALLS_IN_A_ROW, ENOUGH
from ebbflow.numaflow.grpc import UNAVAILABLE, GrpcConnection, GrpcStream
from ebbflow.numaflow.process import FunctionPlan, FunctionProcess
from ebbflow.numaflow.services import READY, Method, Service, service_of

OPEN_LIMIT = 60.0
"""The seconds that a function may take from its server-info to its readiness."""

Failures = dict[int, BaseException | None]
"""Rows without an answer, each with the reason; ``None`` for a row that was not tried."""

_CALL_LIMIT, _PAUSE = 10.0, 0.02
_EMPTY = b""
_RAISED_BY_USER_CODE = "UDF_EXECUTION_ERROR"


class Session:
    """A process, a connection and the open streams of a function, for one thread."""

    def __init__(self, process: FunctionProcess, service: Service) -> None:
        self.process = process
        self.streams: dict[str, GrpcStream] = {}
        self.service = service
        self._connection: GrpcConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be used; false after a failed attempt to open it."""
        return self._connection is not None

    def open(self) -> None:
        """Starts the function and opens its streams; ``Unavailable`` if that cannot be done."""
        self._open(self.process.start)

    def reopen(self) -> None:
        """Does the same with a new process, after the function has failed or timed out."""
        self._disconnect()
        self._open(self.process.restart)

    def reopen_if_ended(self) -> None:
        """Reopens what the function has ended since the last call; no message is penalised."""
        if self._connection is not None:
            self._connection.catch_up()
        streams = self.streams.values()
        gone = self._connection is None or self._connection.is_lost
        if gone or any(stream.is_broken for stream in streams):
            self.reopen()
        elif any(stream.ended for stream in streams):
            self.renew_streams()

    def renew_streams(self) -> None:
        """Reopens the streams to the same process, after a stream has ended."""
        self._disconnect()
        self._open(lambda: None)  # it is running

    def close(self) -> None:
        """Ends the connection and the process."""
        self._disconnect()
        self.process.stop()

    def call(self, name: str, request: bytes = _EMPTY, timeout: float | None = None) -> bytes:
        """Returns the answer to a single request."""
        assert self._connection is not None, "open() comes first"
        return self._connection.call(self.service.methods[name].path, request, timeout)

    def explain(self, error: StreamBroken) -> StreamBroken:
        """Returns the error with what is known about the end of the process, if it has ended."""
        if error.code is not None or (how := self.process.explain_end()) is None:
            return error
        return StreamBroken(f"{error.what}: {how}", None, error.trace)

    def _open(self, start: Callable[[], object]) -> None:
        try:
            start()
            self._open_streams()
        except Unavailable as outage:
            outage.tried = False
            raise

    def _open_streams(self) -> None:
        try:
            self._await_readiness()
            for method in self.service.methods.values():
                if method.streamed:
                    self.streams[method.name] = self._greet(method)
        except (StreamBroken, CallTimeout) as error:
            self._disconnect()
            raise Unavailable(f"the function at {self.process.socket}: {error}") from error

    def _await_readiness(self) -> None:
        deadline = time.monotonic() + OPEN_LIMIT
        while True:
            try:
                self._connection = self._connection or GrpcConnection(self.process.socket)
                self.call(READY, timeout=_CALL_LIMIT)
                return
            except StreamBroken:
                self._disconnect()
                if time.monotonic() > deadline or self.process.explain_end() is not None:
                    raise
            time.sleep(_PAUSE)

    def _greet(self, method: Method) -> GrpcStream:
        assert self._connection is not None
        stream = self._connection.open_stream(method.path)
        stream.send([method.greeting])
        answer = stream.receive(_CALL_LIMIT)
        if not answer or method.greeted not in answer[0]:
            raise StreamBroken(f"{method.name} did not answer the handshake")
        return stream

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self.streams.clear()
        if connection is not None:
            connection.close()


class RemoteCode:
    """The code of a vertex that runs as a function in its own process."""

    def __init__(self, plan: FunctionPlan) -> None:
        self._name = plan.name
        self._session = Session(FunctionProcess(plan), service_of(plan.container))

    def open(self) -> None:
        """Starts the function and opens its streams; ``Unavailable`` if that cannot be done."""
        self._session.open()

    def close(self) -> None:
        """Ends the function."""
        self._session.close()


# --- when the function breaks ---------------------------------------------------------------------


class FunctionCall(Protocol):
    """A call of the function with the rows of a batch."""

    def ask(self, rows: Sequence[int]) -> None:
        """Sends the function these rows and keeps its answers until the last has arrived.

        Raises ``StreamBroken`` or ``CallTimeout`` if the function ends or stalls before that.
        """

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """Returns the rows that have no answer yet."""


def ask_all(session: Session, call: FunctionCall, rows: Sequence[int]) -> Failures:
    """Asks the function for answers to all rows; returns the rows without one."""
    session.reopen_if_ended()
    try:
        call.ask(rows)
    except (StreamBroken, CallTimeout) as error:
        left = call.unanswered(rows)
        try:
            _continue(session, error)
        except Unavailable as outage:
            return dict.fromkeys(left, outage)
        return _ask_one_by_one(session, call, left)
    return {}


def _ask_one_by_one(session: Session, call: FunctionCall, rows: Sequence[int]) -> Failures:
    """Sends the function one row at a time, until it has broken too often in a row."""
    failures: Failures = {}
    in_a_row = 0
    for place, row in enumerate(rows):
        try:
            call.ask([row])
            in_a_row = 0
        except (StreamBroken, CallTimeout) as error:
            failures[row] = reason = _reason(session, error)
            in_a_row += 1
            rest = rows[place + 1 :]
            try:
                _continue(session, error)
            except Unavailable as outage:
                return failures | dict.fromkeys(rest, outage)
            if in_a_row >= (CALLS_IN_A_ROW if isinstance(reason, Unavailable) else ENOUGH):
                return failures | dict.fromkeys(rest, None)
    return failures


def _reason(session: Session, error: StreamBroken | CallTimeout) -> BaseException:
    """Returns the row's error; ``Unavailable`` if user code reported a system as down."""
    if isinstance(error, CallTimeout):
        return error
    if _means_outage(error):
        return Unavailable(error.said.removeprefix("Unavailable: "), error.wait)
    return session.explain(error)


def _continue(session: Session, error: StreamBroken | CallTimeout) -> None:
    """Makes the function ready for the next row; ``Unavailable`` if that cannot be done."""
    try:
        if isinstance(error, StreamBroken) and _means_outage(error):
            session.renew_streams()
        else:
            session.reopen()
    except SetupError as refused:
        outage = Unavailable(str(refused))
        outage.tried = False
        raise outage from refused


def _means_outage(error: StreamBroken) -> bool:
    """Returns whether user code behind the function has raised ``Unavailable``."""
    return error.code == UNAVAILABLE and _RAISED_BY_USER_CODE in error.what
