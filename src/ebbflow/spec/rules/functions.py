"""Rules about functions: each section has code, and each container has a function bound to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

from ebbflow.connectors.user_code import Bound, CodeSection, UserSinkSpec
from ebbflow.domain.code import Code, SinkMode
from ebbflow.domain.errors import TargetError
from ebbflow.numaflow.pynumaflow.recognition import Place, Recognised, Surface, recognise
from ebbflow.spec.bindings import BINDINGS_FILE, NO_MODE
from ebbflow.spec.validate import FieldPath, Finding
from ebbflow.usercode import targets
from ebbflow.usercode.targets import is_class


@dataclass(frozen=True, slots=True)
class Call:
    """A call that Ebbflow makes to user code: to the code itself, or to one of its methods.

    A method that is not ``needed`` may be left out.
    """

    method: str | None
    parameters: tuple[str, ...]
    needed: bool = True

    def written(self, name: str, bound: bool = False) -> str:
        """Returns it as the first line of a function."""
        parameters = (*(("self",) if bound else ()), *self.parameters)
        return f"def {name}({', '.join(parameters)})"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with user code, and what to write instead."""

    what: str
    code: str = "EB403"


_DATUM = (Call(None, ("datum",)),)
_DATA = (Call(None, ("data",)),)
_ROWS = (Call(None, ("rows",)),)
_KEYS_AND_DATUM = (Call(None, ("keys", "datum")),)
_DATUMS = (Call(None, ("datums",)),)

_BY_MODE: Mapping[str, tuple[Call, ...]] = {
    "unary": _DATUM,
    "stream": _DATUM,
    "batch": _DATA,
    "columnar": _ROWS,
    "pandas": _ROWS,
}

_BY_PLACE: Mapping[Place, tuple[Call, ...]] = {
    "source": (
        Call("read", ("limit", "timeout")),
        Call("ack", ("offsets",)),
        Call("nack", ("nacks",), needed=False),
        Call("pending", (), needed=False),
        Call("partitions", (), needed=False),
    ),
    "store": (Call("put", ("id", "payloads")), Call("get", ("id",))),
    "query": (Call(None, ("messages",)),),
}

_BY_SURFACE: Mapping[Surface, tuple[Call, ...]] = {
    Surface.MAP: _KEYS_AND_DATUM,
    Surface.STREAM_MAP: _KEYS_AND_DATUM,
    Surface.TRANSFORMER: _KEYS_AND_DATUM,
    Surface.BATCH_MAP: _DATUMS,
    Surface.SINK: _DATUMS,
    Surface.SOURCE: (
        Call("read_handler", ("datum", "output")),
        Call("ack_handler", ("ack_request",)),
        Call("nack_handler", ("nack_request",), needed=False),
        Call("pending_handler", ()),
        Call("active_partitions_handler", (), needed=False),
    ),
}


def find_faults(code: Any, place: Place, mode: str) -> Iterator[Fault]:
    """Yields why Ebbflow cannot instantiate or call the code, and what to write instead.

    ``mode`` is the one of the spec, by default ``unary`` or ``batch``.
    """
    recognised = recognise(code, place)
    if recognised is not None and (misplaced := _find_misplaced(recognised, place, mode)):
        yield Fault(misplaced)
        return
    surface = recognised.surface if recognised else None
    code = recognised.code if recognised else code
    calls = _BY_SURFACE[surface] if surface else _BY_PLACE.get(place) or _BY_MODE[mode]
    # A query's code is called as it is, even if it is a class.
    made = place != "query"
    if made and (unmade := list(_find_in_making(code))):
        yield from unmade
        return
    for call in calls:
        yield from _find_in_call(code, call, surface, made)


def _find_misplaced(recognised: Recognised, place: Place, mode: str) -> str | None:
    surface, package = recognised.surface, f"pynumaflow.{recognised.package}"
    if surface is None:
        return f"it is written for {package}, and Ebbflow has no place for that"
    if surface.place != place:
        return f"it is written for {package}: use it as a {surface.place}, not as a {place}"
    if place in ("map", "sink") and mode not in ("unary", "batch", surface.mode):
        return f"it is written for {package}, which is not called as mode: {mode}; leave mode out"
    if place == "map" and mode == "batch" and surface is not Surface.BATCH_MAP:
        return f"it is written for {package}, which is not called in batches; leave mode out"
    return None


def _find_in_making(code: Any) -> Iterator[Fault]:
    if not is_class(code):
        return
    kind = code.func if isinstance(code, partial) else code
    if inspect.isabstract(kind):
        for missing in sorted(getattr(kind, "__abstractmethods__", ())):
            yield Fault(f"it has no method {missing!r}", "EB402")
    elif (misfit := _misfit(code, ())) is not None:
        advice = "give its parameters defaults, or name an object of it"
        yield Fault(f"it cannot be made without arguments: {misfit}; {advice}")


def _find_in_call(code: Any, call: Call, surface: Surface | None, made: bool) -> Iterator[Fault]:
    kind = code.func if isinstance(code, partial) else code
    if call.method is not None:
        yield from _find_in_method(kind, call, call.method)
    elif made and (is_class(code) or not _is_function(kind)):
        kind = kind if inspect.isclass(kind) else type(kind)
        handles = surface is not None and hasattr(kind, "handler")
        yield from _find_in_method(kind, call, "handler" if handles else "__call__")
    elif (misfit := _misfit(code, call.parameters)) is not None:
        name = getattr(kind, "__name__", "<lambda>").replace("<lambda>", "handler")
        correct = call.written(name)
        if surface is None and call == _DATUM[0]:
            correct += f", or {_KEYS_AND_DATUM[0].written(name)} for pynumaflow"
        yield Fault(f"{_as_called(call)}: {misfit}; write {correct}")


def _as_called(call: Call, method: str | None = None) -> str:
    what = "it" if method is None else f"its method {method!r}"
    passed = f"({', '.join(call.parameters)})" if call.parameters else "no arguments"
    return f"{what} cannot be called with {passed}"


def _find_in_method(owner: Any, call: Call, method: str) -> Iterator[Fault]:
    if method != "__call__" and not hasattr(owner, method):
        if call.needed:
            yield Fault(f"it has no method {method!r}", "EB402")
        return
    kind = owner if inspect.isclass(owner) else type(owner)
    function = next((k.__dict__[method] for k in kind.__mro__ if method in k.__dict__), None)
    if function is None and method == "__call__":
        correct = call.written(method, bound=True)
        yield Fault(f"an object of it cannot be called; write {correct}")
    elif (misfit := _misfit_of_method(function, call.parameters)) is not None:
        correct = call.written(method, bound=not isinstance(function, staticmethod))
        yield Fault(f"{_as_called(call, method)}: {misfit}; write {correct}")


def _misfit_of_method(function: Any, parameters: tuple[str, ...]) -> str | None:
    if isinstance(function, staticmethod):
        return _misfit(function.__func__, parameters)
    function = getattr(function, "__func__", function)
    return _misfit(function, ("self", *parameters)) if _is_function(function) else None


def _is_function(code: Any) -> bool:
    return isinstance(code, FunctionType) or inspect.isroutine(code)


def _misfit(code: Any, parameters: tuple[str, ...]) -> str | None:
    """Returns why the parameters do not fit; ``None`` if they fit or that is not known."""
    try:
        # Not the signature of a wrapped function, because its wrapper is called.
        signature = inspect.signature(code, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    try:
        signature.bind(*parameters)
    except TypeError as error:
        return str(error)
    return None


def check_code(
    code: CodeSection, path: FieldPath, vertex: str, search: Path | None
) -> Iterator[Finding]:
    """Reports a section without code, or whose Python code cannot be used."""
    if code.python is not None:
        yield from check_target(code.python, (*path, "python"), search, code.PLACE, code.call_mode)
    elif code.python is None and code.container is None:
        message = f"'{path[-1]}' has no code: name a Python function with python: module:attribute"
        yield Finding("EB208", message, path)
    elif code.python is None and code.bound is None:
        yield Finding("EB902", _unbound(code, vertex), (*path, "container"), at_key=True)
    elif code.python is None and code.bound is not None:
        yield from _bound_code(code, code.bound, (*path, "container"), search)
        if code.bound.function is not None and _says_mode(code):
            yield Finding("EB104", NO_MODE, (*path, "mode"))


def check_target(
    target: Code, path: FieldPath, search: Path | None, place: Place, mode: str = "unary"
) -> Iterator[Finding]:
    """Reports code that cannot be imported, instantiated, or called as its place requires."""
    code: Any = target
    if isinstance(target, str):
        if not targets.is_well_formed(target):
            yield Finding("EB401", f"{target!r} is not of the form module:attribute", path)
            return
        try:
            code = targets.resolve(target, search)
        except TargetError as error:
            yield Finding("EB402", str(error), path)
            return
    for fault in find_faults(code, place, mode):
        yield Finding(fault.code, str(TargetError(_name_of(target), fault.what)), path)


def _name_of(target: Code) -> str:
    """Returns the target, or what it would be if it were written in a file."""
    if isinstance(target, str):
        return target
    code = target.func if isinstance(target, partial) else target
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}:{named.__qualname__}"


def _unbound(code: CodeSection, vertex: str) -> str:
    assert code.container is not None
    image = code.container.image
    if image is None:
        return f"the container of {vertex!r} has no image and no command: write one of them"
    return (
        f"there is no function for image {image!r} of {vertex!r}; write in "
        f"{BINDINGS_FILE} next to this file (or --bind FILE): {image}: {{command: [PROGRAM]}}, "
        "or {python: module:attribute}, or {sockets: FOLDER}"
    )


def _says_mode(code: CodeSection) -> bool:
    field = type(code).model_fields.get("mode")
    return field is not None and getattr(code, "mode", None) != field.default


def _bound_code(
    code: CodeSection, bound: Bound, path: FieldPath, search: Path | None
) -> Iterator[Finding]:
    if bound.code is not None:
        yield from check_target(bound.code, path, search, code.PLACE, code.call_mode)
    if isinstance(code, UserSinkSpec) and bound.mode not in (None, *get_args(SinkMode)):
        modes = ", ".join(get_args(SinkMode))
        message = f"the image is bound with mode {bound.mode!r}, and a sink has one of {modes}"
        yield Finding("EB104", message, path)
