"""Dataclasses as JSON and back, by the types of their fields.

A field that a record does not have gets its default, and one that the class does not have is passed
over: a reader and a writer of different versions understand each other. Times are written in ISO
8601, and all of them are in UTC.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")


def dump_fields(value: Any) -> Any:
    """Returns a dataclass as values that ``json.dumps`` takes; what it holds likewise."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: dump_fields(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [dump_fields(inner) for inner in value]
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return {name: dump_fields(getattr(value, name)) for name in _names(kind)}
    return value


@lru_cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def load_fields(cls: type[T], raw: Mapping[str, Any]) -> T:
    """Returns the dataclass that ``dump_fields`` has written.

    Raises ``TypeError`` if a field without a default is missing.
    """
    kind: Any = cls
    loaders = _loaders(kind)
    return cls(**{name: loaders[name](value) for name, value in raw.items() if name in loaders})


@lru_cache
def _loaders(cls: type) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {name: _loader(hints[name]) for name in _names(cls)}


def _loader(hint: Any) -> Callable[[Any], Any]:
    """Returns what makes a value of this type from what JSON has."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        load = _loader(next(part for part in inner if part is not types.NoneType))
        return lambda raw: None if raw is None else load(raw)
    if kind is tuple:
        load = _loader(inner[0])
        return lambda raw: tuple(load(value) for value in raw)
    if kind is dict:
        load = _loader(inner[1])
        return lambda raw: {key: load(value) for key, value in raw.items()}
    if hint is datetime:
        return datetime.fromisoformat
    if dataclasses.is_dataclass(hint):
        return lambda raw: load_fields(typing.cast(Any, hint), raw)
    return lambda raw: raw
