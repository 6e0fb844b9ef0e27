"""Recognises code that is written for pynumaflow, and for which of its surfaces.

A class is recognised by its base classes, a server by the handler in it. A function is recognised
by the names of pynumaflow that it or its module mentions, or by its two parameters, keys and datum,
which no function for Ebbflow has. This module does not import pynumaflow: code that uses it has
imported it already.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, get_args

from ebbflow.usercode.targets import is_class

Place = Literal["map", "transformer", "sink", "source", "store", "query"]
"""Where in a pipeline user code is used; a query is a function from DataFrame to DataFrame."""


class Surface(Enum):
    """A surface of pynumaflow: the name of its package."""

    MAP = "mapper"
    BATCH_MAP = "batchmapper"
    STREAM_MAP = "mapstreamer"
    TRANSFORMER = "sourcetransformer"
    SINK = "sinker"
    SOURCE = "sourcer"

    @property
    def place(self) -> Place:
        """The place in a pipeline that it is for."""
        return _PLACES.get(self, "map")

    @property
    def mode(self) -> Literal["unary", "batch", "stream"]:
        """The mode of a map that is written for it."""
        return _MODES.get(self, "unary")


_PLACES: dict[Surface, Place] = {
    Surface.TRANSFORMER: "transformer",
    Surface.SINK: "sink",
    Surface.SOURCE: "source",
}
_MODES: dict[Surface, Literal["batch", "stream"]] = {
    Surface.BATCH_MAP: "batch",
    Surface.STREAM_MAP: "stream",
}
_FIRST_NAMES = re.compile(r"(?<![\w.])[^\W\d]\w*")
"""The names in a text that are not attributes."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """Code for pynumaflow. ``code`` is the handler or class, without a server around it.

    ``package`` is the package of pynumaflow that it is written for. ``surface`` is the matching
    surface, or ``None`` for code that Ebbflow has no place for: a reducer, a side input.
    """

    code: Any
    package: str

    @property
    def surface(self) -> Surface | None:
        """The surface that it is written for."""
        return Surface(self.package) if self.package in _PACKAGES else None


_PACKAGES = {surface.value for surface in Surface}
_KINDS = _PACKAGES | {"reducer", "reducestreamer", "accumulator", "sideinput"}
"""The packages that code can be written for; other packages are shared by all of them."""


def recognise(code: Any, place: Place) -> Recognised | None:
    """Returns what the code is written for in pynumaflow; ``None`` if it is other code."""
    bare = unwrap_server(code)
    if package := _package_of_class(code) or _package_of_class(bare):
        return Recognised(bare, package)
    if is_class(bare):
        return None
    package = _package_of_function(bare, place)
    return Recognised(bare, package) if package else None


def unwrap_server(code: Any) -> Any:
    """Returns the handler of a pynumaflow server; any other code unchanged.

    A server holds sockets and threads, so only its handler can be sent to a worker.
    """
    if inspect.isclass(code) or not any(_package_in(kind) for kind in type(code).__mro__):
        return code
    found = [value for name, value in vars(code).items() if name.endswith("_instance")]
    return found[0] if len(found) == 1 and hasattr(code, "servicer") else code


def _package_of_class(code: Any) -> str | None:
    """Returns the package that the code's class comes from."""
    code = code.func if isinstance(code, partial) else code
    kinds = (code if inspect.isclass(code) else type(code)).__mro__
    return next(filter(None, map(_package_in, kinds)), None)


def _package_in(owner: Any) -> str | None:
    """Returns ``mapper`` for a class or module of ``pynumaflow.mapper``; ``""`` for the top."""
    name = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", None)
    top, _, rest = str(name or "").partition(".")
    return rest.partition(".")[0] if top == "pynumaflow" else None


def _package_of_function(code: Any, place: Place) -> str | None:
    function = function_in(code)
    if function is None:
        return None
    fitting = {surface.value for surface in Surface if surface.place == place}
    named = _packages_of(_mentions(function))
    mentioned = named or _packages_around(function)
    certain = mentioned & fitting or (named & _KINDS)
    if len(certain) == 1:
        return certain.pop()
    if not mentioned and not takes_keys_and_datum(code, place):
        return None
    return _guess_by_shape(function, code, place).value


def _packages_of(values: Iterable[Any]) -> set[str]:
    return {package for package in map(_package_in, values) if package is not None}


def _packages_around(function: FunctionType) -> set[str]:
    """Returns the pynumaflow packages that the function's module uses, if it uses no Ebbflow."""
    around = list(function.__globals__.values())
    names = [str(getattr(value, "__module__", None) or "") for value in around]
    uses_ebbflow = any(name.partition(".")[0] == "ebbflow" for name in names)
    return set() if uses_ebbflow else _packages_of(around)


def _guess_by_shape(function: FunctionType, code: Any, place: Place) -> Surface:
    if place != "map":
        return next(surface for surface in Surface if surface.place == place)
    if inspect.isasyncgenfunction(function):
        return Surface.STREAM_MAP
    return Surface.MAP if takes_keys_and_datum(code, place) else Surface.BATCH_MAP


def takes_keys_and_datum(code: Any, place: Place) -> bool:
    """Returns whether a map can be called with two arguments and is not meant for one.

    A wrapper may take any number of arguments; then the wrapped function decides.
    """
    if place not in ("map", "transformer"):
        return False
    return _can_take(code, 2) and not (_can_take(code, 1) and _can_take(code, 1, unwrap=True))


def _can_take(code: Any, count: int, unwrap: bool = False) -> bool:
    """Returns whether that many positional arguments fit; false if that is not known."""
    try:
        inspect.signature(code, follow_wrapped=unwrap).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def function_in(code: Any) -> FunctionType | None:
    """Returns the Python function that runs when the code is called, if there is one."""
    if isinstance(code, partial):
        code = code.func
    if not inspect.isroutine(code):
        code = inspect.getattr_static(type(code), "__call__", None)
    code = getattr(inspect.unwrap(code), "__func__", code)
    return code if isinstance(code, FunctionType) else None


def _mentions(function: FunctionType) -> Iterator[Any]:
    """Yields the globals and types that a function's body and annotations mention."""
    names = set(_names_in(function.__code__))
    for annotation in function.__annotations__.values():
        if isinstance(annotation, str):  # it was not evaluated
            names.update(_FIRST_NAMES.findall(annotation))
        else:
            yield from _types_in(annotation)
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)


def _names_in(code: CodeType) -> Iterator[str]:
    # Not all of ``co_names``, because that includes attributes.
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
