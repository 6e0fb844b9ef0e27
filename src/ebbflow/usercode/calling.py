"""Calls user code: its functions and classes, in each mode.

A map or transformer takes a ``Datum`` and returns or yields messages. A sink takes a list of
``Datum`` and returns responses. Each may be a plain function, an ``async`` one, or a class: a class
is instantiated once per worker, ``open()`` is called before its first message, the instance is
called like the function, and ``close()`` is called when the worker gives up the vertex.

An exception of user code is blamed on the messages of the call, or on a system that is down
(``engine.blame``); it never stops a vertex. After an outage a class is instantiated and opened
again. Messages that user code reports as failed are retried at once if waits are short
(``engine.retry``).

A container's variables are set only while its code is instantiated, opened, called or closed: a
worker runs the code of several containers, which may set one variable to different values.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ebbflow.domain.code import Mode, Variables, expand_all
from ebbflow.domain.message import Datum, Message, Nack, Signal
from ebbflow.engine.blame import ENOUGH, USER_ERRORS, Blame, Trial
from ebbflow.engine.checks import NOT_MESSAGES, check_message
from ebbflow.engine.frames import Rows
from ebbflow.engine.retry import Pause, RetryStrategy, retry_failed
from ebbflow.engine.trace_context import SCOPES, Scope
from ebbflow.engine.verdict import Operator, Verdict
from ebbflow.usercode.call_watch import RUNNING, beating, in_time
from ebbflow.usercode.columns import record_columns, select_columns
from ebbflow.usercode.contract import order_results, record_answers, record_rows
from ebbflow.usercode.targets import is_class


class Stream:
    """The outputs that a stream map yields for the inputs of one chunk, one input at a time."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._decisions = verdict.decisions
        self._emitter = verdict.emitter
        self._emitted: set[int] = set()
        self._refused: set[int] = set()

    def record(self, index: int, number: int, message: Message) -> None:
        """Records the ``number``-th message yielded for the input; a nack is raised."""
        check_message(message, self._verdict.rules)
        if message.signal and message.event_time:
            self._decisions.note_event_times([message.event_time])
        match message.signal:
            case Signal.NACK:
                raise Nack(message.nack_options)
            case Signal.FAIL:
                self.withdraw(index)
                self._verdict.fail(index, message.error or "failed")
            case None if index not in self._decisions.failed and index not in self._refused:
                self._decisions.forward(index, number, message)
                self._emit_if_due()

    def end(self, index: int) -> None:
        """Records that the input has no more outputs; without any output it is dropped."""
        outputs = self._decisions.outputs
        last = outputs.parents[-1:] if outputs is not None else []
        if index not in self._decisions.failed and index not in self._emitted and index not in last:
            self._decisions.drop(index)

    def withdraw(self, index: int) -> None:
        """Withdraws the outputs of the input that are not forwarded yet."""
        self._decisions.withdraw_from(index)

    def _emit_if_due(self) -> None:
        if self._emitter is None or not self._emitter.is_due():
            return
        # Removed before they are published: outputs left here would be published again, with
        # another id, when the chunk is settled.
        outputs = self._decisions.take_outputs()
        part = self._verdict.part(self._verdict.rows)
        part.decisions.forward_outputs(outputs)
        written = self._emitter.emit(part)
        if written is None:
            self._decisions.forward_outputs(outputs)
            return
        self._emitted.update(outputs.parents)
        self._decisions.count_emitted(written)
        for index, letter in part.outcomes.items():
            self._refused.add(index)
            self._decisions.finish(index, letter)


# The types that most maps return; a result of another type may have to be awaited.
_READY_TYPES = frozenset({Message, list, type(None), bytes})

# In place of a result: user code was not called on the message, because its system is down.
_UNTRIED = object()


@runtime_checkable
class Openable(Protocol):
    """User code with per-worker setup. While ``open`` raises, the vertex waits."""

    def open(self) -> Any:
        """Called once on the worker before the first message."""


@runtime_checkable
class Closable(Protocol):
    """User code with resources to release."""

    def close(self) -> Any:
        """Called on the worker when it gives up the vertex. Not called when it is killed."""


class Interpreter(ABC):
    """An adapter from Ebbflow's API to user code that is written for another one.

    It is called like any handler, but with the items that ``data`` makes of the rows. A map that is
    called message by message may return bytes for a message with nothing but a value.
    """

    @abstractmethod
    def data(self, rows: Rows) -> list[Any]:
        """Returns an item for every row, in the form that this user code takes."""


class Handler:
    """A user function made ready on a worker: instantiated, opened, and callable.

    ``blame`` records what its calls have shown about the systems it needs. ``instance`` is the
    user's object; for a plain function it is the function. The environment's ``variables`` are set
    while it is instantiated, opened and closed; for calls the caller sets them.
    ``answers_by_returning`` is true for a sink that has written everything when it returns.
    """

    def __init__(self, target: Any, blame: Blame | None = None, variables: Variables = ()) -> None:
        self.blame = blame or Blame()
        self.variables = variables
        self._target = target
        with in_environment(variables):
            self._make()

    def _make(self) -> None:
        instance: Any = self._target() if is_class(self._target) else self._target
        self.instance = instance
        self.call: Callable[..., Any] = instance
        self.interprets = isinstance(instance, Interpreter)
        self.data: Callable[[Rows], list[Any]] = instance.data if self.interprets else Rows.data
        entry = instance if inspect.isroutine(instance) else type(instance).__call__
        self.is_async = inspect.iscoroutinefunction(entry) or inspect.isasyncgenfunction(entry)
        self.answers_by_returning = _is_annotated_none(instance)
        self._runner: asyncio.Runner | None = None
        if isinstance(self.call, Openable):
            self.finish(self.call.open())

    def renew(self) -> None:
        """Closes and reopens user code, as after an outage; raises if opening it fails."""
        with contextlib.suppress(*USER_ERRORS):
            self.close()
        with in_environment(self.variables):
            self._make()

    def finish(self, result: Any) -> Any:
        """Returns the result of a call; an awaitable or async generator is run to its end."""
        if inspect.isasyncgen(result):
            return self.wait_for(_gather(result))
        return self.wait_for(result) if inspect.isawaitable(result) else result

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Runs an awaitable of user code to its end and returns its result."""

        async def run() -> Any:
            if not RUNNING.active:
                return await awaitable
            with beating():
                return await in_time(awaitable, RUNNING.limit)

        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(run())

    def iterate(self, result: Any) -> Iterator[Any]:
        """Yields the outputs of a call, each as soon as user code yields it."""
        if inspect.isasyncgen(result):
            while True:
                try:
                    yield self.wait_for(anext(result))
                except StopAsyncIteration:
                    return
        else:
            result = self.finish(result)
            yield from () if result is None else _as_iterable(result)

    def close(self) -> None:
        """Lets user code release its resources; the handler is not called again."""
        with in_environment(self.variables):
            if isinstance(self.call, Closable):
                self.finish(self.call.close())
        if self._runner is not None:
            self._runner.close()


def _is_annotated_none(code: Any) -> bool:
    """Returns whether the code is annotated ``-> None``; the annotation may be a string."""
    while isinstance(code, partial):
        code = code.func
    entry = code if inspect.isroutine(code) else type(code).__call__
    return getattr(entry, "__annotations__", {}).get("return", ...) in (None, "None")


def call_with_retries(
    verdict: Verdict, call: Operator, strategy: RetryStrategy | None, pause: Pause, what: str
) -> None:
    """Calls user code on the rows and retries failures; dead letters name it as ``what``."""
    call(verdict)
    if verdict.decisions.failed:
        retry_failed(verdict, call, strategy, pause, what)


def in_its_environment(handler: Handler, operator: Operator) -> Operator:
    """Returns the operator with the handler's variables set during each chunk.

    References among the variables are expanded now, as when a container starts.
    """
    if not handler.variables:
        return operator
    values = expand_all(handler.variables, os.environ)

    def call(verdict: Verdict) -> None:
        with _set(values):
            operator(verdict)

    return call


@contextlib.contextmanager
def in_environment(variables: Variables) -> Iterator[None]:
    """Sets environment variables of this process while the context lasts."""
    with _set(expand_all(variables, os.environ) if variables else {}):
        yield


@contextlib.contextmanager
def _set(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _find_scopes(rows: Rows) -> Mapping[int, Scope]:
    return {} if SCOPES.find is None else SCOPES.of(rows)


def _as_iterable(result: Any) -> Iterable[Any]:
    single = isinstance(result, (Message, *NOT_MESSAGES)) or not isinstance(result, Iterable)
    return (result,) if single else result


async def _gather(results: AsyncIterator[Any]) -> list[Any]:
    return [result async for result in results]


def call_map(handler: Handler, verdict: Verdict, concurrency: int) -> None:
    """Calls the map on every row, one by one or, if it is ``async``, ``concurrency`` at a time."""
    ordered = verdict.rules.ordered
    if handler.is_async and not ordered:
        handler.wait_for(map_concurrently(handler, verdict, concurrency))
        return
    trial, scopes = Trial(verdict, handler.blame), _find_scopes(verdict.rows)
    call = _in_scopes(handler, scopes) if scopes else handler.call
    interprets, largest = handler.interprets, verdict.rules.largest
    record = verdict.record_interpreted if interprets else verdict.record
    with RUNNING as running, PlainRun(verdict) as run:
        values = run.values
        for index, datum in enumerate(handler.data(verdict.rows)):
            running.row = index
            try:
                result = call(datum)
                # Nearly every message has nothing but a value of an allowed size. It needs no
                # check, and a function call would cost more than all the remaining work.
                if (
                    type(result) is Message
                    and type(value := result.value) is bytes
                    and len(value) <= largest
                    and result.signal is None
                    and result.keys is None
                    and not result.tags
                    and result.event_time is None
                    and result.metadata is None
                ):
                    values.append(value)
                    continue
                if interprets and type(result) is bytes and len(result) <= largest:
                    values.append(result)
                    continue
                run.end_before(index)
                record(index, result if type(result) in _READY_TYPES else handler.finish(result))
            except USER_ERRORS as error:
                run.end_before(index)
                trial.failed(index, index + 1, error)
                if trial.stops and not ordered:
                    trial.leave(index + 1)
                    return
            if ordered and verdict.holds_up(index, index + 1):
                verdict.decisions.stop_at(index + 1)
                return
    trial.finish()


class PlainRun:
    """The outputs of consecutive inputs that have nothing but a value; recorded together."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.values: list[bytes] = []
        self._start = 0

    def end_before(self, index: int) -> None:
        """Records the run so far; the caller records the input at the index by itself."""
        if self.values:
            self._verdict.record_run(self._start, self.values)
            self.values.clear()
        self._start = index + 1

    def __enter__(self) -> PlainRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_before(len(self._verdict.rows))


def _in_scopes(handler: Handler, scopes: Mapping[int, Scope]) -> Callable[[Any], Any]:
    """Returns the handler's call, with the trace context of the running row."""

    def call(datum: Any) -> Any:
        if (scope := scopes.get(RUNNING.row)) is None:
            return handler.call(datum)
        with scope():
            result = handler.finish(handler.call(datum))
            return list(result) if inspect.isgenerator(result) else result

    return call


async def map_concurrently(handler: Handler, verdict: Verdict, concurrency: int) -> None:
    """Calls an ``async`` map on every row, ``concurrency`` of them at a time."""
    trial, call = Trial(verdict, handler.blame), handler.call
    gate, scopes = asyncio.Semaphore(concurrency), _find_scopes(verdict.rows)
    down = 0

    async def call_with(index: int, datum: Datum) -> Any:
        nonlocal down
        async with gate:
            if down >= trial.calls_in_a_row:
                return _UNTRIED
            try:
                with scopes.get(index, contextlib.nullcontext)():
                    result = call(datum)
                    result = _gather(result) if inspect.isasyncgen(result) else result
                    result = await in_time(result, RUNNING.limit)
                down = 0
                return result
            except USER_ERRORS as error:
                down = down + 1 if trial.means_down(error) else 0
                return error

    with RUNNING, beating():
        data = enumerate(handler.data(verdict.rows))
        results = await asyncio.gather(*(call_with(index, datum) for index, datum in data))
    untried = [index for index, result in enumerate(results) if result is _UNTRIED]
    trial.postpone(untried)
    trial.failed_among_others(
        list(_record_results(verdict, 0, results)), len(results), bool(untried)
    )


def _record_results(
    verdict: Verdict, start: int, results: Iterable[Any]
) -> Iterator[tuple[int, BaseException]]:
    """Records the results for rows; yields the rows that failed, each with the error."""
    for index, result in enumerate(results, start):
        if result is _UNTRIED:
            continue
        if isinstance(result, USER_ERRORS):
            yield index, result
            continue
        try:
            verdict.record(index, result)
        except USER_ERRORS as error:
            yield index, error


def map_in_mode(handler: Handler, mode: Mode, size: int) -> Operator:
    """Returns the operator that calls a map in its mode, on up to ``size`` messages at a time."""
    match mode:
        case "unary":
            return partial(call_map, handler, concurrency=size)
        case "stream":
            return partial(run_stream, handler)
        case "batch":
            return partial(run_batch_map, handler, batch_size=size)
        case "columnar" | "pandas":
            return partial(run_columnar, handler, batch_size=size, pandas=mode == "pandas")


def sink_in_mode(
    handler: Handler, mode: Mode, size: int, fail_unavailable: bool = False
) -> Operator:
    """Returns the operator that calls a sink in its mode, on up to ``size`` messages at a time."""
    if mode == "batch":
        return partial(call_sink, handler, batch_size=size, fail_unavailable=fail_unavailable)
    call = partial(run_columnar_sink, handler, batch_size=size, pandas=mode == "pandas")
    return partial(call, fail_unavailable=fail_unavailable)


def call_sink(
    handler: Handler, verdict: Verdict, batch_size: int, fail_unavailable: bool = False
) -> None:
    """Calls the sink on the rows in batches and records its responses.

    The list is a copy, here and in batch maps, so user code may change it. With
    ``fail_unavailable`` UNAVAILABLE counts as FAILURE, because a retry strategy handles outages.
    """
    data = handler.data(verdict.rows)

    def call_on(start: int, end: int) -> list[tuple[int, BaseException]]:
        batch = data[start:end]
        answers = handler.finish(handler.call(list(batch)))
        if answers is None and handler.answers_by_returning:
            return []
        return record_answers(verdict, start, batch, answers, fail_unavailable)

    _in_batches(handler, verdict, batch_size, call_on)


def run_columnar_sink(
    handler: Handler,
    verdict: Verdict,
    batch_size: int,
    pandas: bool,
    fail_unavailable: bool = False,
) -> None:
    """Calls the sink on the rows as record batches, or as data frames; records its responses."""
    record = partial(record_rows, fail_unavailable=fail_unavailable)
    _call_on_columns(handler, verdict, batch_size, pandas, record)


def run_batch_map(handler: Handler, verdict: Verdict, batch_size: int) -> None:
    """Calls the map on the rows in batches and records the result of each row, by id."""
    data = handler.data(verdict.rows)

    def call_on(start: int, end: int) -> list[tuple[int, BaseException]]:
        batch = data[start:end]
        results = order_results(
            verdict.rules.vertex, batch, handler.finish(handler.call(list(batch)))
        )
        return list(_record_results(verdict, start, results))

    _in_batches(handler, verdict, batch_size, call_on)


def run_columnar(handler: Handler, verdict: Verdict, batch_size: int, pandas: bool) -> None:
    """Calls the map on the rows as record batches, or as data frames, and records its columns."""
    _call_on_columns(handler, verdict, batch_size, pandas, record_columns)


def _call_on_columns(
    handler: Handler, verdict: Verdict, batch_size: int, pandas: bool, record: RecordColumns
) -> None:
    rows = select_columns(verdict.rows)

    def call_on(start: int, end: int) -> Failed:
        part = rows.slice(start, end - start)
        answer = handler.finish(handler.call(part.to_pandas() if pandas else part))
        return record(verdict, start, end - start, answer)

    _in_batches(handler, verdict, batch_size, call_on)


def run_stream(handler: Handler, verdict: Verdict) -> None:
    """Calls the map on the rows one by one and forwards its outputs while it runs.

    Outputs that have been forwarded stay forwarded when the input is nacked afterwards.
    """
    trial, stream = Trial(verdict, handler.blame), Stream(verdict)
    scopes = _find_scopes(verdict.rows)
    for index, datum in enumerate(handler.data(verdict.rows)):
        try:
            with scopes.get(index, contextlib.nullcontext)():
                for number, message in enumerate(_call_stepwise(handler, datum)):
                    stream.record(index, number, message)
            stream.end(index)
        except USER_ERRORS as error:
            stream.withdraw(index)
            trial.failed(index, index + 1, error)
        else:
            # Before ``_leave_rest``: a success shows that an outage is over.
            trial.failed_among_others((), index + 1)
        if _leave_rest(verdict, trial, index, index + 1):
            return
    trial.finish()


Failed = Sequence[tuple[int, BaseException | None]]
"""Rows that failed individually, each with its error; ``None`` for a row that was not tried."""

RecordColumns = Callable[[Verdict, int, int, Any], Failed]
"""Records an answer, given its first row and row count; returns rows that failed individually."""

CallOn = Callable[[int, int], Failed]
"""Calls user code on the rows of a batch; returns those that failed individually."""


def _call_stepwise(handler: Handler, datum: Datum) -> Iterator[Any]:
    """Yields the outputs of a stream map; the call timeout applies to each of them."""
    end = object()
    with RUNNING:
        results = iter(handler.iterate(handler.call(datum)))
        message = next(results, end)
    while message is not end:
        yield message
        with RUNNING:
            message = next(results, end)


def _in_batches(handler: Handler, verdict: Verdict, size: int, call_on: CallOn) -> None:
    """Calls user code batch after batch; an exception counts against its batch only."""

    def call(start: int, end: int) -> Failed:
        with RUNNING:
            return call_on(start, end)

    trial = Trial(verdict, handler.blame)
    for start, end in _cut_calls(verdict, size):
        _try_batch(trial, start, end, call)
        if _leave_rest(verdict, trial, start, end):
            return
    trial.finish()


def _try_batch(trial: Trial, start: int, end: int, call_on: CallOn) -> None:
    try:
        _note_failures(trial, call_on(start, end), end)
    except USER_ERRORS as error:
        if end - start < ENOUGH or isinstance(error, Nack) or trial.means_down(error):
            trial.failed(start, end, error)
        else:
            _try_alone(trial, start, end, call_on, error)


def _note_failures(trial: Trial, failures: Failed, end: int) -> None:
    """Decides about the rows up to ``end`` that failed, and postpones those that were not tried."""
    trial.postpone([index for index, error in failures if error is None])
    trial.failed_among_others(
        [(index, error) for index, error in failures if error is not None], end
    )


def _try_alone(trial: Trial, start: int, end: int, call_on: CallOn, error: BaseException) -> None:
    """Finds out whether a batch failed because of one message, or would fail with any.

    The first message that passes alone proves that a message is to blame. The remaining ones are
    then redelivered, to be called alone.
    """
    for index in range(start, min(start + trial.enough, end)):
        try:
            failures = call_on(index, index + 1)
        except USER_ERRORS as raised:
            trial.failed(index, index + 1, raised)
        else:
            _note_failures(trial, failures, index + 1)
            break
    if trial.stops:
        trial.leave(index + 1, end)
    elif index + 1 < end:
        trial.failed(index + 1, end, error, others_passed=True)


def _leave_rest(verdict: Verdict, trial: Trial, start: int, end: int) -> bool:
    """Leaves the rows from ``end`` on if they must wait or would fail; returns whether it did."""
    if verdict.holds_up(start, end):
        verdict.decisions.stop_at(end)
        return True
    if trial.stops:
        trial.leave(end)
        return True
    return False


def _cut_calls(verdict: Verdict, size: int) -> Iterable[tuple[int, int]]:
    """Yields the rows of each call; usually no row has failed before, so full batches will do."""
    rows, ordered = verdict.rows, verdict.rules.ordered
    if not ordered and not rows.count_failed():
        return _full_ranges(len(rows), size)
    return call_ranges(rows.column("failures"), size, rows.column("keys") if ordered else None)


def _full_ranges(count: int, size: int) -> Iterable[tuple[int, int]]:
    return ((at, min(at + size, count)) for at in range(0, count, size))


def call_ranges(
    failures: Sequence[int], size: int, keys: Sequence[Sequence[str]] | None = None
) -> Iterable[tuple[int, int]]:
    """Yields the rows of each call: at most ``size``, and each row that failed before alone.

    So a bad message that has failed its batch once cannot drag its neighbours to the dead letters:
    they pass on their second delivery. If order matters, the caller passes ``keys``, and no two
    rows with the same keys are in one call: the second must not be done before the first.
    """
    start = 0
    if keys is None and not any(failures):
        yield from _full_ranges(len(failures), size)
        return
    while start < len(failures):
        end = start + 1
        seen = {tuple(keys[start])} if keys else None
        while not failures[start] and end < len(failures) and end - start < size:
            if failures[end] or (keys and seen is not None and tuple(keys[end]) in seen):
                break
            if keys and seen is not None:
                seen.add(tuple(keys[end]))
            end += 1
        yield start, end
        start = end
