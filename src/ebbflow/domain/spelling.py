"""Misspelt names, and what was meant: options of calls, vertices, fields.

A public call that takes options is decorated with ``named_options`` or, for the fields of a class,
with ``named_fields``. A wrong option then raises an error at the call that says what to write, also
if the option was renamed or removed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import NoReturn, ParamSpec, TypeVar, get_args, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_KINDS = ("generator", "http", "jetstream", "nats", "kafka", "spark", "serving", "file")
REPLACED = {
    **{
        kind: f"give {'JetStream' if kind == 'jetstream' else kind.title()}(...) of "
        "ebbflow.connectors in place of the code"
        for kind in (*_KINDS, "log", "blackhole", "serve")
    },
    "source.code": "it is 'source' now",
    "sink.code": "it is 'sink' now",
    "nack.options": "give NackOptions in place of the reason",
    "to_nack.options": "give NackOptions in place of the reason",
    "VertexStatus.in_hand": "it is 'in_flight' now",
}
"""Removed options and attributes, some with their call or class, and what to write instead."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate most like ``name``, or ``None`` when none is close."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str) -> str:
    """Returns the end of an error message: the nearest name, or else all names."""
    names = list(candidates)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"{otherwise} {', '.join(names)}" if names else f"{otherwise} none"


def named_options(method: Callable[P, R]) -> Callable[P, R]:
    """Returns the method, wrapped to raise ``TypeError`` for a keyword that it does not take."""

    takes_any = bool(method.__code__.co_flags & inspect.CO_VARKEYWORDS)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if takes_any:
            _check_names(method, args, kwargs)
            return method(*args, **kwargs)
        try:
            return method(*args, **kwargs)
        except TypeError:
            # Only now, because user code makes such a call for every message that it nacks.
            _check_names(method, args, kwargs)
            raise

    return call


def _check_names(
    method: Callable[..., object], args: Sequence[object], names: Iterable[str]
) -> None:
    known = _names(method)
    for name in names:
        if name not in known:
            replaced = REPLACED.get(f"{method.__name__}.{name}") or REPLACED.get(name)
            raise no_option(_display_name(method, *args), name, known, replaced) from None


def no_option(call: str, name: str, known: Iterable[str], replaced: str | None = None) -> TypeError:
    """Returns the error for an option that a call does not take."""
    meant = replaced or did_you_mean(name, known, "it takes")
    return TypeError(f"{call} has no option {name!r}; {meant}")


def named_fields(cls: type[T]) -> type[T]:
    """Returns the class, changed to raise ``TypeError`` when it is called with a wrong keyword."""
    cls.__init__ = named_options(cls.__init__)  # type: ignore[method-assign]
    return cls


@functools.cache
def _names(method: Callable[..., object]) -> tuple[str, ...]:
    """Returns the names of all keywords, those of the typed dictionary behind ``**`` included."""
    names: list[str] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = get_args(get_type_hints(method)[name])
            names += get_type_hints(options)
        elif name not in ("self", "cls") and parameter.kind is not parameter.VAR_POSITIONAL:
            names.append(name)
    return tuple(names)


def _display_name(method: Callable[..., object], *args: object) -> str:
    made = method.__name__ == "__init__"
    return f"{type(args[0]).__name__ if made else method.__qualname__}()"


class Gone:
    """A public method that was removed; its use raises an error that says what to write instead."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{self._name} is gone; write {self._instead}")


def no_attribute(owner: type, name: str) -> AttributeError:
    """Returns the error for an attribute that objects of a class do not have."""
    names = [each for each in dir(owner) if not each.startswith("_")]
    meant = REPLACED.get(f"{owner.__name__}.{name}") or did_you_mean(name, names, "it has")
    return AttributeError(f"{owner.__name__} has no attribute {name!r}; {meant}", name=name)
