"""The one place where code for pynumaflow is found out and given the shape of Ebbflow's code."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from ebbflow.domain.code import Mode
from ebbflow.numaflow.pynumaflow.code import PynumaflowCode
from ebbflow.numaflow.pynumaflow.maps import (
    AsyncKeysAndDatum,
    BatchOfDatums,
    KeysAndDatum,
    StreamOfMessages,
)
from ebbflow.numaflow.pynumaflow.recognition import Place, Surface, function_in, recognise
from ebbflow.numaflow.pynumaflow.sinks import ResponsesSink
from ebbflow.numaflow.pynumaflow.source import NackablePynumaflowSource, PynumaflowSource

_SHAPES: dict[Surface, type[PynumaflowCode]] = {
    Surface.BATCH_MAP: BatchOfDatums,
    Surface.STREAM_MAP: StreamOfMessages,
    Surface.SINK: ResponsesSink,
}


def adapt(code: Any, place: Place) -> Any:
    """Returns the code as Ebbflow calls it; code that is not pynumaflow's as it is.

    Runs on a worker, before the code is made and opened.
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
    """Returns the mode in which a map is called: the one that its code for pynumaflow is for."""
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
