"""Options of the builders' methods: one that does not exist is refused where it is written.

A method that takes its options as ``**options: Unpack[SomeTypedDict]`` would swallow a misspelt
one, and Python's own refusal does not say which one was meant.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, get_args, get_type_hints

from ebbflow.suggest import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def named_options(method: Callable[P, R]) -> Callable[P, R]:
    """Returns the method, which raises ``TypeError`` for a keyword that it does not take."""

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _names(method)
        for name in kwargs:
            if name not in known:
                meant = did_you_mean(name, known, "it takes")
                raise TypeError(f"{_called(method)} has no option {name!r}; {meant}")
        return method(*args, **kwargs)

    return checked


@functools.cache
def _names(method: Callable[..., object]) -> tuple[str, ...]:
    """Returns what may be given by name, that of the typed dictionary behind ``**`` included."""
    names: list[str] = []
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
            continue
        (options,) = get_args(get_type_hints(method)[name])
        names += get_type_hints(options)
    return tuple(names)


def _called(method: Callable[..., object]) -> str:
    return f"{method.__qualname__.removesuffix('.__init__')}()"
