"""Adapts code for pynumaflow to Ebbflow: made once per worker, called by the rules for all code.

``adapt`` is the only place where such code is recognised and wrapped; its exceptions are handled
like those of any user code.

pynumaflow's source receives nacks without options, so the adapter forwards a nack only when its
delay is over: a delay means the same on every source. Until then the message is neither
acknowledged nor nacked, so it is not lost if the process ends.

A message of pynumaflow inherits nothing from its input: without keys it has none, and without
metadata it has none. Any value that is not a message or response of pynumaflow is left unchanged,
and the rules for Ebbflow's own code then report what is wrong with it.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from ebbflow.domain.code import Mode
from ebbflow.domain.message import Message, NackOptions, Response, Signal, Status
from ebbflow.domain.user_source import NackOffset, Source, SourceMessage
from ebbflow.engine.checks import NOT_MESSAGES
from ebbflow.engine.frames import Rows
from ebbflow.numaflow.nacks import OPTIONS, HeldNacks
from ebbflow.numaflow.pynumaflow.datum import RowFacts, list_datums
from ebbflow.numaflow.pynumaflow.recognition import Place, Surface, function_in, recognise
from ebbflow.usercode.calling import Closable, Interpreter, Openable
from ebbflow.usercode.targets import is_class

_PARTITION_BYTES = 4
# Putting a message never waits, so without an occasional pause no other task would ever run.
_PUTS_IN_A_ROW = 100
_SIGNALS = {signal.tag: signal for signal in (Signal.NACK, Signal.FAIL, Signal.DROP)}
"""The tags of messages that are not data to forward, the strongest first."""

_NO_TIME = datetime(1, 1, 1)  # pynumaflow's value for a missing event time


class PynumaflowCode(Interpreter):
    """A handler for pynumaflow, with the interface of Ebbflow's handlers.

    A class is instantiated once per worker. Exceptions of the handler are not changed, so the rules
    about failures are the same as for all user code.
    """

    def __init__(self, surface: Surface, code: Any) -> None:
        self._surface = surface
        self._instance = code() if is_class(code) else code
        self._handler = entry_of(self._instance)

    def data(self, rows: Rows) -> list[Any]:
        """Returns the rows as pynumaflow's datums."""
        return list_datums(rows, self._surface)

    def open(self) -> Any:
        """Opens the user's object, if it has ``open()``."""
        return self._instance.open() if isinstance(self._instance, Openable) else None

    def close(self) -> Any:
        """Closes the user's object, if it has ``close()``."""
        return self._instance.close() if isinstance(self._instance, Closable) else None

    @abstractmethod
    def __call__(self, data: Any) -> Any:
        """Calls the handler, and converts its answer."""


def entry_of(instance: Any) -> Callable[..., Any]:
    """Returns the callable to use: for objects of pynumaflow's classes, directly their handler."""
    call = inspect.getattr_static(type(instance), "__call__", None)
    from_pynumaflow = getattr(call, "__module__", "").partition(".")[0] == "pynumaflow"
    return instance.handler if from_pynumaflow else instance  # type: ignore[no-any-return]


class Datums:
    """The datums of one call, to be iterated once, with ``for`` or with ``async for``."""

    def __init__(self, datums: Sequence[Any]) -> None:
        self._rest = iter(datums)

    def __iter__(self) -> Datums:
        return self

    def __next__(self) -> Any:
        return next(self._rest)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Any]:
        for datum in self._rest:
            yield datum

    async def __anext__(self) -> Any:
        for datum in self._rest:
            return datum
        raise StopAsyncIteration


# --- maps, transformers and sinks -----------------------------------------------------------------


class KeysAndDatum(PynumaflowCode):
    """A map or transformer that is called with the keys and the datum of each message."""

    def __call__(self, datum: Any) -> Any:
        """Calls the handler; returns its answer, or an awaitable of it."""
        facts = datum._facts
        answer = self._handler(facts.keys(datum._index) if facts.has_keys else [], datum)
        if (simple := read_simple(answer, facts)) is not None:
            return simple
        if hasattr(answer, "_messages") or not inspect.isawaitable(answer):
            return adapt_messages(answer, facts)
        return self._wait(answer, datum)

    async def _wait(self, answer: Awaitable[Any], datum: Any) -> Any:
        return adapt_messages(await answer, datum._facts)


class AsyncKeysAndDatum(PynumaflowCode):
    """An ``async`` map or transformer: many messages are processed concurrently."""

    async def __call__(self, datum: Any) -> Any:
        """Calls the handler."""
        return adapt_messages(
            await self._handler(datum._facts.keys(datum._index), datum), datum._facts
        )


class StreamOfMessages(PynumaflowCode):
    """A stream map: an ``async`` generator of messages."""

    async def __call__(self, datum: Any) -> AsyncIterator[Any]:
        """Yields each message as the handler yields it."""
        async with aclosing(self._handler(datum._facts.keys(datum._index), datum)) as messages:
            async for message in messages:
                yield read_message(message, datum._facts)


class BatchOfDatums(PynumaflowCode):
    """A batch map: many datums in, a response for each id out."""

    async def __call__(self, datums: list[Any]) -> Any:
        """Calls the handler with all datums."""
        return read_batch(await self._handler(Datums(datums)), datums[0]._facts)


class ResponsesSink(PynumaflowCode):
    """A sink that iterates over datums, with ``for`` or ``async for``, and responds to each."""

    def __call__(self, datums: list[Any]) -> Any:
        """Calls the handler with all datums; returns its responses, or an awaitable of them."""
        answer = self._handler(Datums(datums))
        return self._wait(answer) if inspect.isawaitable(answer) else read_responses(answer)

    async def _wait(self, answer: Awaitable[Any]) -> Any:
        return read_responses(await answer)


# --- sources --------------------------------------------------------------------------------------


class ReadOutput:
    """The output of a read handler: collects its messages."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def put(self, message: Any) -> None:
        """Adds one message."""
        self.messages.append(message)
        if len(self.messages) % _PUTS_IN_A_ROW == 0:
            await asyncio.sleep(0)


class PynumaflowSource(Source):
    """A ``Sourcer`` of pynumaflow, in the process of a source."""

    def __init__(self, code: Any) -> None:
        self._sourcer = code() if is_class(code) else code
        self._types = sys.modules["pynumaflow.sourcer"]

    async def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        """Calls the read handler once and returns its messages."""
        milliseconds = timeout // timedelta(milliseconds=1)
        request = self._types.ReadRequest(num_records=limit, timeout_in_ms=milliseconds)
        output = ReadOutput()
        await self._sourcer.read_handler(request, output)
        return [_read_message(message) for message in output.messages]

    async def ack(self, offsets: Sequence[bytes]) -> None:
        """Acknowledges messages."""
        named = [self._offset(offset) for offset in offsets]
        await self._sourcer.ack_handler(self._types.AckRequest(offsets=named))

    async def pending(self) -> int | None:
        """Returns how many messages wait; ``None`` if pynumaflow returns a negative number."""
        count = (await self._sourcer.pending_handler()).count
        return None if count < 0 else int(count)

    async def partitions(self) -> Sequence[int]:
        """Returns the partitions."""
        older = getattr(self._sourcer, "partitions_handler", None)
        handler = getattr(self._sourcer, "active_partitions_handler", older)
        return [] if handler is None else list((await handler()).partitions)

    def _offset(self, offset: bytes) -> Any:
        partition = int.from_bytes(offset[:_PARTITION_BYTES], "big", signed=True)
        return self._types.Offset(offset[_PARTITION_BYTES:], partition)


class NackablePynumaflowSource(PynumaflowSource):
    """A ``Sourcer`` with a ``nack_handler``, from pynumaflow 0.11 or newer."""

    def __init__(self, code: Any) -> None:
        super().__init__(code)
        self._held = HeldNacks()

    async def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        """Forwards nacks whose delays are over, and reads until the next nack is due."""
        now = time.monotonic()
        await self._nack_now(self._held.take_due(now))
        seconds = min(timeout.total_seconds(), self._held.due_in(now))
        return await super().read(limit, timedelta(seconds=seconds))

    async def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Nacks messages without a delay, and keeps other nacks until their delay is over."""
        now = time.monotonic()
        self._held.hold(nacks, now)
        await self._nack_now(self._held.take_due(now))

    async def _nack_now(self, nacks: Sequence[NackOffset]) -> None:
        if nacks:
            named = [self._offset(nacked.offset) for nacked in nacks]
            await self._sourcer.nack_handler(self._types.NackRequest(offsets=named))


def _read_message(message: Any) -> SourceMessage:
    """Returns a message whose offset includes the partition, since only both identify it."""
    partition = message.offset.partition_id
    event_time = message.event_time
    return SourceMessage(
        message.payload,
        partition.to_bytes(_PARTITION_BYTES, "big", signed=True) + message.offset.offset,
        event_time if event_time.tzinfo else event_time.replace(tzinfo=UTC),  # as pynumaflow does
        keys=message.keys,
        headers=message.headers,
        partition=partition,
        metadata=adapt_metadata(getattr(message, "user_metadata", None)),
    )


# --- what handlers return -------------------------------------------------------------------------


def read_simple(messages: Any, facts: RowFacts) -> Message | bytes | None:
    """Returns the answer if it is one message with just a value and maybe keys, as most are.

    Bytes are a message with just a value. For any other answer, returns ``None``.
    """
    try:
        # Reads the slots directly, as one property would take as long as all of this.
        (message,) = messages._messages
        if message._tags or message._user_metadata._data or facts.has_more:
            return None
        value, keys = message._value, message._keys
    except (AttributeError, ValueError):  # of another class, or not one message
        return None
    return Message(value, keys) if keys or facts.has_keys or type(value) is not bytes else value


def adapt_messages(messages: Any, facts: RowFacts) -> Any:
    """Returns a handler's answer to a datum with these facts: a message or a list."""
    # Iterating with pynumaflow's own methods would take longer than all the rest.
    several = getattr(messages, "_messages", messages)
    if type(several) is list:
        read = [read_message(message, facts) for message in several]
        return read[0] if len(read) == 1 else read
    if isinstance(messages, Message) or hasattr(messages, "_tags"):
        return read_message(messages, facts)
    if not isinstance(messages, Iterable) or isinstance(messages, NOT_MESSAGES):
        raise TypeError(f"a pynumaflow handler returned {type(messages).__name__}, not Messages")
    return [read_message(message, facts) for message in messages]


def read_message(message: Any, facts: RowFacts) -> Any:
    """Returns a message of a map or transformer as Ebbflow's."""
    try:
        keys, tags = message._keys, message._tags
    except AttributeError:
        return message
    if not tags and not facts.has_more and not getattr(message, "_user_metadata", None):
        return Message(message._value, keys if keys or facts.has_keys else None)
    return _read_all(message)


def _read_all(message: Any) -> Message:
    event_time = getattr(message, "event_time", None)
    event_time = None if event_time == _NO_TIME else event_time
    for tag, signal in _SIGNALS.items():
        if tag in message.tags:
            return _read_signal(signal, message, event_time)
    return Message(
        message.value,
        message.keys or (),
        message.tags,
        event_time,
        metadata=adapt_metadata(getattr(message, "user_metadata", None)),
    )


def _read_signal(signal: Signal, message: Any, event_time: datetime | None) -> Message:
    match signal:
        case Signal.DROP:
            return Message.to_drop(event_time)
        case Signal.NACK:
            return Message.to_nack(adapt_nack_options(message), event_time)
        case Signal.FAIL:
            return Message.to_fail(getattr(message, "error", None) or "failed", event_time)


def adapt_metadata(metadata: Any) -> Mapping[str, Mapping[str, bytes]]:
    """Returns the metadata of a message, by group and key."""
    return {} if metadata is None else {group: metadata[group] for group in metadata.groups()}


def adapt_nack_options(answer: Any) -> NackOptions | None:
    """Returns the options of a nack; ``None`` in releases of pynumaflow without options."""
    options = getattr(answer, "nack_options", None)
    if options is None:
        return None
    return NackOptions(*(getattr(options, name, None) for name in OPTIONS))


def read_batch(responses: Any, facts: RowFacts) -> Any:
    """Returns the answers of a batch map by the ids of its datums."""
    if not isinstance(responses, Iterable) or isinstance(responses, Mapping | str | bytes):
        return responses
    results: dict[Any, Any] = {}
    for response in responses:
        read_id = getattr(response, "id", None)
        results[read_id] = adapt_messages(getattr(response, "messages", response), facts)
    return results


def read_responses(responses: Any) -> Any:
    """Returns the responses of a sink."""
    several = getattr(responses, "_responses", responses)
    if not isinstance(several, Iterable):
        return responses
    return [_read_response(response) for response in several]


def _read_response(response: Any) -> Any:
    try:
        if response.success:
            return Response.ok(response.id)
        if response.fallback:
            return Response.fallback(response.id)
    except AttributeError:  # not a response of pynumaflow
        return response
    # Not every release has these attributes, and some have methods with the same names.
    if getattr(response, "on_success", None) is True:
        return Response.on_success(response.id, _read_on_success(response.on_success_msg))
    if getattr(response, "serve", None) is True:
        return Response.serve(response.id, getattr(response, "serve_response", None) or b"")
    if getattr(response, "nack", None) is True or adapt_nack_options(response) is not None:
        return Response.nack(response.id, adapt_nack_options(response))
    return Response(response.id, Status.FAILURE, error=response.err or "failed")


def _read_on_success(message: Any) -> Message | None:
    """Returns the message for the on-success sink, which replaces keys and metadata as well."""
    if message is None:
        return None
    return Message(
        message.value, message.keys or (), metadata=adapt_metadata(message.user_metadata)
    )


# --- choosing the adapter -------------------------------------------------------------------------
_SHAPES: dict[Surface, type[PynumaflowCode]] = {
    Surface.BATCH_MAP: BatchOfDatums,
    Surface.STREAM_MAP: StreamOfMessages,
    Surface.SINK: ResponsesSink,
}


def adapt(code: Any, place: Place) -> Any:
    """Returns code for pynumaflow wrapped for Ebbflow; other code unchanged.

    Runs on a worker, before the code is instantiated and opened.
    """
    recognised = recognise(code, place)
    surface = recognised.surface if recognised else None
    if recognised is None or surface is None:
        return code
    if surface is Surface.SOURCE:
        nackable = hasattr(_class_of(recognised.code), "nack_handler")
        return partial(NackablePynumaflowSource if nackable else PynumaflowSource, recognised.code)
    shape = _SHAPES.get(surface) or _shape_of_map(recognised.code)
    return partial(shape, surface, recognised.code)


def mode_of(code: Any, mode: Mode, place: Place = "map") -> Mode:
    """Returns the mode for calling a map; code for pynumaflow determines it by its surface."""
    recognised = recognise(code, place)
    surface = recognised.surface if recognised else None
    return mode if surface is None else surface.mode


def _class_of(code: Any) -> type:
    code = code.func if isinstance(code, partial) else code
    return code if inspect.isclass(code) else type(code)


def _shape_of_map(code: Any) -> type[PynumaflowCode]:
    kind = _class_of(code)
    function = kind.handler if hasattr(kind, "handler") else function_in(code)
    return AsyncKeysAndDatum if inspect.iscoroutinefunction(function) else KeysAndDatum
