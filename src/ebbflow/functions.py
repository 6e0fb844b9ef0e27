"""User code: what its functions look like, and how the worker calls them.

A map or transformer takes a ``Datum`` and returns or yields messages. A sink takes a list of data
and returns responses. Each may be a plain function, an ``async`` one, or a class: a class is made
once per worker, ``open()`` is called before its first message, the instance is called like the
function, and ``close()`` is called when the worker gives up the vertex.

Whatever user code raises stays with the messages it was working on; it never stops a vertex.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from ebbflow.core.contract import answered
from ebbflow.core.verdict import Verdict
from ebbflow.message import Datum, Message, Response

MapResult = Message | Iterable[Message] | None
MapFunction = Callable[[Datum], MapResult | Awaitable[MapResult] | AsyncIterator[Message]]
"""Runs on a worker, once per delivery. No messages returned means that the input is dropped."""

SinkFunction = Callable[[list[Datum]], Iterable[Response] | Awaitable[Iterable[Response]]]
"""Runs on a worker, with at most ``limits.readBatchSize`` data, one response for each."""

# SystemExit too: a handler that calls sys.exit() has failed on its message, nothing more. So has
# one that waits for a task of its own that was cancelled; nobody else cancels anything here.
USER_ERRORS = (Exception, SystemExit, asyncio.CancelledError)

# What most maps return; anything else may have to be waited for.
_AT_HAND = frozenset({Message, list, type(None)})


@runtime_checkable
class Openable(Protocol):
    """User code that prepares something per worker. An exception here fails the vertex's task."""

    def open(self) -> Any:
        """Called once on the worker before the first message."""


@runtime_checkable
class Closable(Protocol):
    """User code that has something to give back."""

    def close(self) -> Any:
        """Called on the worker when it gives up the vertex. Not called when it is killed."""


class Handler:
    """A user function made ready on a worker: instantiated, opened, and callable."""

    def __init__(self, target: Any) -> None:
        made: Any = target() if inspect.isclass(target) else target
        self.call: Callable[..., Any] = made
        entry = made if inspect.isroutine(made) else type(made).__call__
        self.is_async = inspect.iscoroutinefunction(entry) or inspect.isasyncgenfunction(entry)
        self._runner: asyncio.Runner | None = None
        if isinstance(self.call, Openable):
            self.finished(self.call.open())

    def finished(self, result: Any) -> Any:
        """What a call returned, waited for if it is of ``async`` code behind a plain function."""
        if inspect.isasyncgen(result):
            return self.wait_for(_gathered(result))
        return self.wait_for(result) if inspect.isawaitable(result) else result

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Run something of the user's ``async`` code to its end."""

        async def run() -> Any:
            return await awaitable

        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(run())

    def close(self) -> None:
        """Give back what the user's code holds; the handler is not called again."""
        if isinstance(self.call, Closable):
            self.finished(self.call.close())
        if self._runner is not None:
            self._runner.close()


async def _gathered(results: AsyncIterator[Any]) -> list[Any]:
    return [result async for result in results]


def run_map(handler: Handler, verdict: Verdict, concurrency: int) -> None:
    """Give every row to the map, one by one or, if it is ``async``, ``concurrency`` at a time."""
    if handler.is_async:
        handler.wait_for(_map_all(handler.call, verdict, concurrency))
        return
    call, returned, raised = handler.call, verdict.returned, verdict.raised
    for index, datum in enumerate(verdict.rows.data()):
        try:
            result = call(datum)
            returned(index, result if type(result) in _AT_HAND else handler.finished(result))
        except USER_ERRORS as error:
            raised(index, error)


async def _map_all(call: Callable[..., Any], verdict: Verdict, concurrency: int) -> None:
    gate = asyncio.Semaphore(concurrency)

    async def one(datum: Datum) -> Any:
        async with gate:
            try:
                result = call(datum)
                if inspect.isasyncgen(result):
                    return await _gathered(result)
                return await result
            except USER_ERRORS as error:
                return error

    results = await asyncio.gather(*(one(datum) for datum in verdict.rows.data()))
    for index, result in enumerate(results):
        _record(verdict, index, result)


def _record(verdict: Verdict, index: int, result: Any) -> None:
    if isinstance(result, USER_ERRORS):
        verdict.raised(index, result)
        return
    try:
        verdict.returned(index, result)
    except USER_ERRORS as error:
        verdict.raised(index, error)


def run_sink(handler: Handler, verdict: Verdict, batch_size: int) -> None:
    """Give the rows to the sink in batches and record its responses."""
    data = verdict.rows.data()
    for start, end in batches(verdict.rows.column("failures"), batch_size):
        batch = data[start:end]
        try:
            answered(verdict, start, batch, handler.finished(handler.call(batch)))
        except USER_ERRORS as error:
            verdict.raised_for(range(start, end), error)


def batches(failures: Sequence[int], size: int) -> Iterable[tuple[int, int]]:
    """Where to cut: at most ``size`` rows a call, and rows that failed before go alone.

    Alone, so that a bad message that failed its batch once cannot take its neighbours along to
    the dead letters: they pass on their second delivery.
    """
    start = 0
    while start < len(failures):
        end = start + 1
        while not failures[start] and end < len(failures) and end - start < size:
            if failures[end]:
                break
            end += 1
        yield start, end
        start = end
