"""Messages as Kafka records and back: keys, headers, deleted values.

A record has one key, a message has any number. As in Numaflow they are carried in headers,
``__key_len`` and ``__key_0`` and so on, and read back from there. A record without a value, which
deletes its key from a compacted topic, is an empty message with the header ``__tombstone``.

Keys and headers of messages are text. Bytes that are no UTF-8 are written as ``\\xff``, so that
different ones stay different.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

KEY_COUNT = "__key_len"
KEY = "__key_{}"
TOMBSTONE = "__tombstone"

Headers = Sequence[tuple[str, bytes | str | None]] | None


def read_headers(key: bytes | str | None, headers: Headers) -> tuple[list[str], dict[str, str]]:
    """Returns a message's keys and headers from those of a record; the last of equal names wins."""
    texts = {name: _text(value) for name, value in headers or ()}
    names = _key_names(texts)
    if names is None:
        return ([] if key is None else [_text(key)]), texts
    del texts[KEY_COUNT]
    return [texts.pop(name) for name in names], texts


def _key_names(headers: Mapping[str, str]) -> list[str] | None:
    """Returns the headers that hold the keys, or ``None`` if there are none that do."""
    count = headers.get(KEY_COUNT, "")
    if not count.isdecimal() or int(count) >= len(headers):
        return None
    names = [KEY.format(number) for number in range(int(count))]
    return names if all(name in headers for name in names) else None


def write_headers(keys: Sequence[str], headers: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Returns the headers of a record for a message's keys and headers."""
    plain = {name: value for name, value in headers.items() if name != TOMBSTONE}
    numbered = {KEY.format(number): key for number, key in enumerate(keys)}
    every = plain | {KEY_COUNT: str(len(keys))} | numbered
    return [(name, value.encode()) for name, value in every.items()]


def _text(value: bytes | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return value.decode(errors="backslashreplace")
