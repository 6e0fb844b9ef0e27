"""Records as JSON: dataclasses to plain values and back, by the types of their fields.

Everything that is stored or sent as JSON and read back goes through here: the status, samples,
pauses, taps, shapes and traces. A key is the name of its field, or what ``stored_as`` says. Times
are written in ISO 8601 and in UTC.

A field that a record lacks gets its default, and a field that the class does not have is ignored:
so readers and writers of different versions understand each other. Types are not checked.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")

Convert = Callable[[Any], Any]

_KEY = "json"
_LISTS = (tuple, list, frozenset, set, Sequence)
_NAMES = (dict, Mapping)


def stored_as(key: str | None) -> dict[str, str | None]:
    """Returns metadata that gives a field another key in JSON; with ``None`` it is not stored."""
    return {_KEY: key}


def to_json(record: Any) -> bytes:
    """Returns a record, or a list or tuple of them, as compact JSON."""
    plain = [*map(to_plain, record)] if isinstance(record, list | tuple) else to_plain(record)
    return json.dumps(plain, separators=(",", ":")).encode()


def from_json(cls: type[T], raw: bytes | str) -> T:
    """Returns a record from what ``to_json`` returned."""
    return from_plain(cls, json.loads(raw))


def to_plain(record: Any) -> dict[str, Any]:
    """Returns a record, with all nested records, as values that ``json.dumps`` accepts."""
    codec = _codec(type(record))
    plain = dict(zip(codec.keys, codec.read(record), strict=True))
    for key, dump in codec.dumped:
        if (value := plain[key]) is not None:
            plain[key] = dump(value)
    return plain


def from_plain(cls: type[T], plain: Mapping[str, Any]) -> T:
    """Returns a record from what ``to_plain`` returned.

    Raises ``TypeError`` if a field without a default is missing.
    """
    codec = _codec(cls)
    known = {name: plain[key] for key, name in codec.names if key in plain}
    for name, load in codec.loaded:
        if (value := known.get(name)) is not None:
            known[name] = load(value)
    return cls(**known)


class _Codec:
    """How the fields of one class are written and read; most need no conversion."""

    def __init__(self, cls: Any) -> None:
        hints = typing.get_type_hints(cls)
        keys = {field.name: field.metadata.get(_KEY, field.name) for field in fields(cls)}
        self.names = [(key, name) for name, key in keys.items() if key is not None]
        self.keys = [key for key, _ in self.names]
        get = attrgetter(*(name for _, name in self.names))
        self.read: Convert = get if len(self.names) > 1 else lambda record: (get(record),)
        converts = [(key, name, *_converters(hints[name])) for key, name in self.names]
        self.dumped = [(key, dump) for key, _, dump, _ in converts if dump is not None]
        self.loaded = [(name, load) for _, name, _, load in converts if load is not None]


_codec: Callable[[type], _Codec] = cache(_Codec)


def _converters(hint: Any) -> tuple[Convert | None, Convert | None]:
    """Returns what writes and what reads values of a type; ``None`` if JSON has the type."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        return _converters(next(part for part in inner if part is not types.NoneType))
    if kind in _LISTS:
        return _list_converters(kind, *_converters(inner[0]))
    if kind in _NAMES:
        dump, load = _converters(inner[1])
        return _for_values(dump), _for_values(load)
    if hint is datetime:
        return _format_time, datetime.fromisoformat
    if is_dataclass(hint):
        return to_plain, lambda plain: from_plain(typing.cast(Any, hint), plain)
    return None, None


def _list_converters(
    kind: Any, dump: Convert | None, load: Convert | None
) -> tuple[Convert, Convert]:
    make = tuple if kind is Sequence else kind
    order: Convert = sorted if kind in (frozenset, set) else list
    dumps: Convert = order if dump is None else lambda values: [dump(each) for each in values]
    loads: Convert = make if load is None else lambda values: make(load(each) for each in values)
    return dumps, loads


def _for_values(convert: Convert | None) -> Convert:
    if convert is None:
        return dict
    return lambda named: {name: convert(value) for name, value in named.items()}


def _format_time(time: datetime) -> str:
    """Returns a time in UTC; a time without a zone stays as it is."""
    utc = time if time.tzinfo is UTC or time.tzinfo is None else time.astimezone(UTC)
    return utc.isoformat()
