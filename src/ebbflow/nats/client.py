"""The client of nats-py, extended to enforce TLS and to react when a server denies permissions.

A server sends "permissions violation" apart from any request, and nats-py leaves the callers that
wait for an answer waiting. Here a denied subject ends every wait for it at once, with an error that
names it. Ebbflow needs all of its subscriptions, above all the inbox for answers. So once a
subscription is denied, every request fails with that error.

Each request has a number, by which its answer is matched. A single request waits for its own
answer. A volley is many requests: they are sent in a few large buffers, with a bounded number of
them unanswered, and their answers are collected parcel by parcel. The sender of a volley decides
what to do about unanswered requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import ssl
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from ebbflow.domain.errors import AccessError, SetupError
from ebbflow.nats.login import Addresses
from ebbflow.nats.wire import (
    BulkParser,
    Parcel,
    Publishes,
    TakeParcel,
    encode_publish,
    write_headers,
)

OnDenial = Callable[[AccessError], None]

WINDOW = 4096
"""The most requests of a volley that are in flight at once."""

_WINDOW_BYTES = 4 * 1024 * 1024
NO_RESPONDERS = 503
"""The status of a request to a subject without subscribers."""

Answer = bytes | int | None
"""The payload of an answer, the status that the server answered with, or ``None`` for neither."""

NO_TLS = "the server does not use TLS"
NO_CERTIFICATE = "the server wants a certificate"
_DENIAL = re.compile(r'Permissions Violation for (Publish|Subscription) to "((?:\\.|[^"\\])+)"')
_REFUSED = 5.0
_PIECE = 1024 * 1024
_VERBS = {"Publish": "publish", "Subscription": "subscribe"}


# The private parts of nats-py's client that this module relies on. No other module uses them.
PRIVATE_PARTS = (
    *("_attempt_reconnect", "_current_server", "_server_pool"),
    *("_connect_to_server", "_flush_pending", "_process_connect_init", "_process_err"),
    *("_process_info", "_remove_sub", "_max_payload", "_max_pending_size", "_pending"),
    *("_pending_data_size", "_ps", "_server_info", "_sid", "_transport"),
)


NATS_PY = "2.16"
"""The version of nats-py whose private parts are known; the package requires this one."""


def check_nats_py(client: Client) -> None:
    """Raises ``SetupError`` if the installed nats-py is not the one that this module supports."""
    installed = _installed_nats_py()
    if missing := [part for part in PRIVATE_PARTS if not hasattr(client, part)]:
        why = f"its client has no {' and no '.join(missing)}"
    elif not installed.startswith(f"{NATS_PY}."):
        why = f"Ebbflow uses private parts of its client, which are known for {NATS_PY} only"
    else:
        return
    raise SetupError(
        f"Ebbflow does not work with nats-py {installed}: {why}.",
        f"Install a version that works with: pip install 'nats-py=={NATS_PY}.*'",
    )


@cache
def _installed_nats_py() -> str:
    return version("nats-py")


class Reply(NamedTuple):
    """The answer to a single request."""

    data: bytes
    headers: dict[str, str] | None = None


class SecuredClient(Client):
    """The connection that ``connect`` makes. ``denied`` is a subscription that was refused."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__()
        check_nats_py(self)
        self._ps: BulkParser = BulkParser(self)  # type: ignore[assignment]
        self._requests = Requests(self)
        self._is_writing = False
        self.denied: str | None = None
        self._refused_since: float | None = None
        self._addresses = addresses
        self._listeners: dict[str, set[OnDenial]] = {}

    # --- connecting -----------------------------------------------------------------------------

    @cached_property
    def ssl_context(self) -> ssl.SSLContext:
        """The login's TLS settings; made when the first server uses TLS."""
        logging.getLogger("asyncio").addFilter(_is_no_noise)
        return self._addresses.login.make_tls_context()

    @property
    def uses_tls(self) -> bool:
        """``True`` if the connection is encrypted."""
        return bool(self._server_info.get("tls_required"))

    @property
    def is_on_a_single_server(self) -> bool:
        """``True`` if the server that it is connected to is not part of a cluster."""
        return not self._server_info.get("cluster")

    @property
    def has_jetstream(self) -> bool:
        """``True`` if the server that it is connected to has JetStream enabled."""
        return bool(self._server_info.get("jetstream"))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            # Another server may allow what the last one denied; subscriptions are made again.
            self.denied = None
            self._agree_on_tls(info)
        await super()._process_info(info, initial_connection)

    def _agree_on_tls(self, info: dict[str, Any]) -> None:
        """Raises when TLS is wanted but not possible, before the login is sent in the clear."""
        wanted = self._addresses.wants_tls
        if wanted and info.get("tls_available"):
            info["tls_required"] = True  # where TLS is optional, nats-py does not use it
        if wanted and not info.get("tls_required"):
            raise nats.errors.Error(NO_TLS)
        if info.get("tls_verify") and self._addresses.login.cert is None:
            raise nats.errors.Error(NO_CERTIFICATE)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except nats.errors.Error as error:
            if refuses_login(error):
                self._refused_since = self._refused_since or time.monotonic()
            raise
        self._refused_since = None

    @property
    def ended(self) -> str | None:
        """The reason why there will be no connection any more; ``None`` if there may be.

        Another server may accept the login that one refuses, so it takes a while to be sure.
        """
        since = self._refused_since
        if self.is_closed or (since is not None and time.monotonic() - since > _REFUSED):
            return str(self.last_error or "no reason was given").removeprefix("nats: ").strip("'")
        return None

    async def _attempt_reconnect(self) -> None:
        # In random order, so that the clients of a lost server spread over the other servers. The
        # lost server comes last: if its machine is gone, a try takes the full connect timeout.
        lost = self._current_server
        random.shuffle(self._server_pool)
        self._server_pool.sort(key=lambda server: server is lost)
        await super()._attempt_reconnect()

    async def flush(self, timeout: int = 10) -> None:
        """Waits until the server has received everything that was sent so far."""
        # nats-py's ping would overtake data that still waits in the client.
        await self._flush_pending(force_flush=True)
        await super().flush(timeout)

    def abandon(self) -> None:
        """Closes a connection that was not completed."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Ends the connection for good."""
        try:
            await super().close()
        except asyncio.CancelledError:
            # nats-py cancels its own reconnecting, and with it the future that both await.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise

    # --- many at a time -------------------------------------------------------------------------

    async def _connect_to_server(self, s: Any) -> None:
        if not self._transport and s.uri.scheme in ("nats", "tls"):
            self._transport = WideTransport(self._ps)
        await super()._connect_to_server(s)

    async def listen(self, subject: str, take: TakeParcel, queue: str = "") -> Subscription:
        """Subscribes; ``take`` gets all messages that have arrived together, as one parcel.

        It is called on the client's loop and must not raise. Members of a ``queue`` share messages.
        """
        # nats-py numbers its subscriptions; this predicts the next number.
        sid = b"%d" % (self._sid + 1)
        self._ps.in_bulk[sid] = take
        return await self.subscribe(subject, queue=queue, cb=_ignore)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._ps.in_bulk.pop(b"%d" % sid, None)
        super()._remove_sub(sid, max_msgs)

    def check_sending(self, size: int) -> None:
        """Raises nats-py's error when a message of that size cannot be sent now."""
        if self.is_connected and size <= self._max_payload:
            return
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        if size + self._pending_data_size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError

    def send(self, buffer: bytes | memoryview) -> None:
        """Sends encoded publishes, together with everything else sent in this turn of the loop."""
        self._pending.append(buffer)  # type: ignore[arg-type]
        self._pending_data_size += len(buffer)
        if not self._is_writing and not getattr(asyncio.get_running_loop(), "_ready", True):
            self._write()  # no other callback is about to run that could send something, too
        else:
            self._write_soon()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if force_flush or not self.is_connected:
            return await super()._flush_pending(force_flush)
        # nats-py would wake a writer task; a callback costs a tenth of that.
        self._write_soon()
        return None

    def _write_soon(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_writing = False
        if self._pending and self.is_connected and self._transport is not None:
            buffers, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.writelines(buffers)

    async def request(  # type: ignore[override]
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Reply:
        """Sends a request and returns its answer; raises as nats-py does, at less cost."""
        return await self.ask(subject, write_headers(headers or {}), payload, timeout)

    def ask(self, subject: str, headers: bytes, payload: bytes, timeout: float) -> Awaitable[Reply]:
        """Sends a request with encoded headers; returns its answer."""
        if self.denied is not None and (denial := self._no_answers) is not None:
            raise denial
        return self._requests.ask(subject, headers, payload, timeout)

    @asynccontextmanager
    async def begin_volley(self) -> AsyncIterator[Volley]:
        """Opens a volley whose requests are sent in steps; see ``Requests``."""
        await self._requests.open()
        with self._requests.begin_volley() as volley:
            yield volley

    async def request_all(self, rows: Publishes, silence: float) -> list[Answer]:
        """Sends many requests and returns the answers; see ``Requests.ask_all``."""
        return await self._requests.ask_all(rows, silence)

    # --- denials --------------------------------------------------------------------------------

    @property
    def _no_answers(self) -> AccessError | None:
        """The reason why no answer can arrive, if that is known."""
        return self._make_denial("subscribe", self.denied) if self.denied is not None else None

    def when_denied(self, subject: str, listener: OnDenial) -> Callable[..., None]:
        """Calls the listener when the subject is denied; call the returned function to stop.

        Raises ``AccessError`` when it is known already that no answer can arrive.
        """
        if (denial := self._no_answers) is not None:
            raise denial
        listeners = self._listeners.setdefault(subject, set())
        listeners.add(listener)

        def stop(*_: object) -> None:
            listeners.discard(listener)
            if not listeners and self._listeners.get(subject) is listeners:
                del self._listeners[subject]

        return stop

    @asynccontextmanager
    async def unless_denied(self, subject: str) -> AsyncIterator[None]:
        """Ends waits inside the block with ``AccessError`` when the subject is denied."""
        denials: list[AccessError] = []
        now = asyncio.get_running_loop().time

        def end(error: AccessError) -> None:
            if not denials:
                scope.reschedule(now())
            denials.append(error)

        try:
            async with asyncio.timeout(None) as scope:
                stop = self.when_denied(subject, end)
                try:
                    yield
                finally:
                    stop()
        except TimeoutError:
            if not denials:
                raise
            raise denials[0] from None

    async def _process_err(self, err_msg: str) -> None:
        # nats-py has lower-cased the text, but two subjects may differ in case only.
        denial = _DENIAL.search(self._ps.line.decode("utf-8", "replace"))
        if denial is not None:
            self._report_denial(_VERBS[denial[1]], re.sub(r"\\(.)", r"\1", denial[2]))
        await super()._process_err(err_msg)

    def _report_denial(self, verb: str, subject: str) -> None:
        affected = list(self._listeners.get(subject, ()))
        if verb == "subscribe":
            self.denied = subject
            affected = [listener for some in self._listeners.values() for listener in some]
        for listener in affected:
            listener(self._make_denial(verb, subject))
        denied = subject if verb == "publish" else None
        self._requests.deny(denied, self._make_denial(verb, subject))

    def _make_denial(self, verb: str, subject: str) -> AccessError:
        return AccessError(str(self._addresses), verb, subject)


class _Waiting(NamedTuple):
    """A single unanswered request; ``until`` is in the loop's time."""

    answer: asyncio.Future[Reply]
    subject: str
    until: float


class Volley:
    """Many requests, and their answers so far, in the order of sending."""

    def __init__(self, client: SecuredClient, inbox: bytes) -> None:
        self.answers: list[Answer] = []
        self.answered = 0
        self._client = client
        self._inbox = inbox
        self._news = asyncio.Event()

    def send(self, rows: Publishes) -> None:
        """Sends more requests."""
        buffer, _ = self.encode(rows)
        self.send_encoded(buffer, len(rows))

    def encode(self, rows: Publishes) -> tuple[memoryview, list[int]]:
        """Returns the encoded requests, and where each begins and the last one ends."""
        return rows.encode(self._inbox, len(self.answers))

    def send_encoded(self, buffer: memoryview, size: int) -> None:
        """Sends ``size`` encoded requests, in their order."""
        self.answers += [None] * size
        self._client.send(buffer)

    def take(self, request: int, parcel: Parcel, row: int) -> None:
        """Takes the answer in a row of a parcel; only the first answer to a request counts."""
        if self.answers[request] is None:
            status = (parcel.headers(row) or {}).get("Status")
            self.answers[request] = parcel.payload(row) if status is None else int(status)
            self.answered += 1

    def wake(self) -> None:
        """Wakes the sender that waits for answers."""
        self._news.set()

    async def wait(self, silence: float | None) -> bool:
        """Returns when answers have arrived; ``False`` if none has for that many seconds."""
        self._news.clear()
        try:
            async with asyncio.timeout(silence):
                return await self._news.wait()
        except TimeoutError:
            return False


class Requests:
    """The requests of one client. Everything happens on its loop."""

    def __init__(self, client: SecuredClient) -> None:
        self._client = client
        self._inbox = b""
        self._count = 0
        self._opening = asyncio.Lock()
        self._waiting: dict[bytes, _Waiting] = {}
        self._next_look = math.inf
        self._volleys: dict[bytes, Volley] = {}

    async def open(self) -> None:
        """Subscribes to the answers; called before the first request."""
        if self._inbox:
            return
        async with self._opening:
            if not self._inbox:
                inbox = f"{self._client.new_inbox()}."
                await self._client.listen(f"{inbox}*", self._receive)
                self._inbox = inbox.encode()

    def _next_number(self) -> bytes:
        self._count += 1
        return b"%d" % self._count

    async def ask(self, subject: str, headers: bytes, payload: bytes, timeout: float) -> Reply:
        """Sends one request, with headers encoded by ``write_headers``; returns its answer.

        ``NoRespondersError`` when the subject has no subscriber, nats-py's ``TimeoutError`` when no
        answer comes in time, ``AccessError`` when the login may not ask.
        """
        if not self._inbox:
            await self.open()
        self._client.check_sending(len(payload))
        loop = asyncio.get_running_loop()
        number, until = self._next_number(), loop.time() + timeout
        answer: asyncio.Future[Reply] = loop.create_future()
        self._waiting[number] = _Waiting(answer, subject, until)
        if until < self._next_look:
            self._look_at(loop, until)
        try:
            self._client.send(
                encode_publish(subject.encode(), b" " + self._inbox + number, headers, payload)
            )
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        # One timer for all requests: most are answered long before, so a timer each would be waste.
        self._next_look = when
        loop.call_at(when, self._expire, loop, when)

    def _expire(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        """Fails the requests that have timed out."""
        for waiting in self._waiting.values():
            if waiting.until <= when and not waiting.answer.done():
                waiting.answer.set_exception(nats.errors.TimeoutError())
        if when == self._next_look:  # else an earlier timer has been set since
            later = [waiting.until for waiting in self._waiting.values() if waiting.until > when]
            self._next_look = math.inf
            if later and (soonest := min(later)) < math.inf:
                self._look_at(loop, soonest)

    @contextmanager
    def begin_volley(self) -> Iterator[Volley]:
        """Opens a volley; answers after its end are ignored. Call ``open`` first."""
        number = self._next_number()
        volley = self._volleys[number] = Volley(self._client, self._inbox + number + b"-")
        try:
            yield volley
        finally:
            del self._volleys[number]

    async def ask_all(self, rows: Publishes, silence: float) -> list[Answer]:
        """Sends requests and returns the answers in their order.

        A row's answer is ``None`` if it could not be sent because the connection was lost, or if
        no answer to any row came for ``silence`` seconds.
        """
        await self.open()
        with self.begin_volley() as volley:
            buffer, starts = volley.encode(rows)
            while volley.answered < len(rows):
                sent = len(volley.answers)
                end = _end_of_window(starts, sent, volley.answered)
                if end > sent and self._client.is_connected:
                    volley.send_encoded(buffer[starts[sent] : starts[end]], end - sent)
                if not await volley.wait(silence):
                    break
            return volley.answers + [None] * (len(rows) - len(volley.answers))

    def _receive(self, parcel: Parcel) -> None:
        skip, volleys = len(self._inbox), self._volleys
        woken: set[bytes] = set()
        for row, subject in enumerate(parcel.subjects):
            number, of_volley, place = subject[skip:].partition(b"-")
            if not of_volley:
                self._settle(number, parcel, row)
            elif number in volleys:
                volleys[number].take(int(place), parcel, row)
                woken.add(number)
        for number in woken:
            volleys[number].wake()

    def _settle(self, number: bytes, parcel: Parcel, row: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or (answer := waiting.answer).done():
            return
        headers = parcel.headers(row)
        if headers and headers.get("Status") == str(NO_RESPONDERS):
            answer.set_exception(nats.errors.NoRespondersError())
        else:
            answer.set_result(Reply(parcel.payload(row), headers))

    def deny(self, subject: str | None, error: AccessError) -> None:
        """Fails the requests to a subject that the login may not use, or all requests."""
        for waiting in self._waiting.values():
            if subject in (None, waiting.subject) and not waiting.answer.done():
                waiting.answer.set_exception(error)


def _end_of_window(starts: Sequence[int], sent: int, answered: int) -> int:
    """Returns the end of the rows that may be sent now within the window."""
    end = min(len(starts) - 1, answered + WINDOW)
    most = starts[answered] + _WINDOW_BYTES
    if starts[end] > most:
        # A row that is larger than the window is sent alone.
        end = max(bisect_right(starts, most, sent, end) - 1, sent + (sent == answered))
    # A few large buffers are cheaper than many small ones.
    is_sliver = end < len(starts) - 1 and end - sent < (sent - answered) // 4
    return sent if is_sliver else end


class WideTransport(TcpTransport):
    """A connection that is read in large pieces; nats-py reads 32 KiB at a time.

    Data that arrives while nats-py waits for it is parsed at once. Bulk messages are delivered
    right away, and nats-py gets only the rest.
    """

    def __init__(self, parser: BulkParser) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._parser = parser
        self._is_read = False

    def __bool__(self) -> bool:
        return True

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """Connects, with a read buffer for a large piece."""
        self._is_read = False
        await super().connect(uri, _PIECE, connect_timeout)
        self._parse_on_arrival()

    async def connect_tls(self, *args: Any, **more: Any) -> None:
        """Begins to encrypt, with the same read buffer."""
        await super().connect_tls(*args, **more)
        self._io_reader._limit = _PIECE  # type: ignore[union-attr]
        self._parse_on_arrival()

    def _parse_on_arrival(self) -> None:
        reader, parser = self._io_reader, self._parser
        assert reader is not None
        queue = reader.feed_data

        def feed_data(data: bytes) -> None:
            # Only while ``_read_loop`` waits: if it is busy, its parser has not finished the piece
            # before this one. Nor before it runs: the server's first lines are read without it.
            if self._is_read and getattr(reader, "_waiter", None) is not None:
                data = parser.parse_at_once(data)
            if data:
                queue(data)

        reader.feed_data = feed_data  # type: ignore[method-assign, assignment]

    async def read(self, buffer_size: int) -> bytes:
        """Returns the data that has arrived, up to a large piece."""
        self._is_read = True
        piece: bytes = await super().read(_PIECE)
        return piece


async def _ignore(message: Msg) -> None:
    """Ignores messages: ``listen`` delivers them in bulk instead."""


def _is_no_noise(record: logging.LogRecord) -> bool:
    """The way nats-py starts TLS makes asyncio warn each time that a server disconnects."""
    return "eof_received" not in str(record.msg)


def refuses_login(error: Exception) -> bool:
    """Returns ``True`` if the error says that a server refused the login."""
    return re.search("authorization|authentication", str(error), re.IGNORECASE) is not None
