"""Sinks that are written for pynumaflow, in the shape of Ebbflow's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from ebbflow.numaflow.pynumaflow.answers import read_responses
from ebbflow.numaflow.pynumaflow.code import Datums, PynumaflowCode


class ResponsesSink(PynumaflowCode):
    """A sink that goes through datums, with ``for`` or ``async for``, and answers for each."""

    def __call__(self, datums: list[Any]) -> Any:
        """Calls the handler with all datums; its answer may have to be waited for."""
        answer = self._handler(Datums(datums))
        return self._wait(answer) if inspect.isawaitable(answer) else read_responses(answer)

    async def _wait(self, answer: Awaitable[Any]) -> Any:
        return read_responses(await answer)
