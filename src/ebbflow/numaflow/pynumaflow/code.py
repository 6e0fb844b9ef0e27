"""User code for pynumaflow on a worker: made once, opened and closed by the rules for all code."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ebbflow.engine.frames import Rows
from ebbflow.numaflow.pynumaflow.datum import list_datums
from ebbflow.numaflow.pynumaflow.recognition import Surface
from ebbflow.usercode.calling import Closable, Interpreter, Openable
from ebbflow.usercode.targets import is_class


class PynumaflowCode(Interpreter):
    """A handler of pynumaflow's, in the shape of Ebbflow's.

    A class is made once per worker. What the handler raises goes on as it is, so the rules about
    failures are the same as for all user code.
    """

    def __init__(self, surface: Surface, code: Any) -> None:
        self._surface = surface
        self._instance = code() if is_class(code) else code
        self._handler = entry_of(self._instance)

    def data(self, rows: Rows) -> list[Any]:
        """Returns the rows as datums of pynumaflow."""
        return list_datums(rows, self._surface)

    def open(self) -> Any:
        """Opens the user's object, if it can be opened."""
        return self._instance.open() if isinstance(self._instance, Openable) else None

    def close(self) -> Any:
        """Closes the user's object, if it can be closed."""
        return self._instance.close() if isinstance(self._instance, Closable) else None

    @abstractmethod
    def __call__(self, given: Any) -> Any:
        """Calls the handler, and reads its answer."""


def entry_of(instance: Any) -> Callable[..., Any]:
    """Returns what to call: of an object of pynumaflow's classes its handler, without a detour."""
    call = inspect.getattr_static(type(instance), "__call__", None)
    from_pynumaflow = getattr(call, "__module__", "").partition(".")[0] == "pynumaflow"
    return instance.handler if from_pynumaflow else instance  # type: ignore[no-any-return]


class Datums:
    """The datums of one call, to be gone through once, with ``for`` or with ``async for``."""

    def __init__(self, datums: Sequence[Any]) -> None:
        self._rest = iter(datums)

    def __iter__(self) -> Datums:
        return self

    def __next__(self) -> Any:
        return next(self._rest)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._go_through()

    async def _go_through(self) -> AsyncIterator[Any]:
        for datum in self._rest:
            yield datum

    async def __anext__(self) -> Any:
        for datum in self._rest:
            return datum
        raise StopAsyncIteration
