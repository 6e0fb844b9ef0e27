"""The options of the data source: their names, values and meanings.

An option that is unknown, does not belong here or makes no sense is refused before anything is read
or written. The error names the option and what to write instead. The reference page is made from
``OPTIONS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

from ebbflow.domain.durations import milliseconds
from ebbflow.domain.errors import DataSourceError, SetupError, did_you_mean
from ebbflow.nats.bulk import WINDOW
from ebbflow.nats.locate import NATS_URL, find_own_server
from ebbflow.nats.login import Addresses, Login
from ebbflow.nats.publish import PublishOptions, check_subject

T = TypeVar("T")
Start = Literal["earliest", "latest"] | int | datetime
"""Where to begin: a word, the sequence of the first message, or a time."""

EARLIEST: Start = "earliest"
LATEST: Start = "latest"


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the reference shows it."""

    name: str
    value: str
    default: str
    meaning: str


_URL = Option(
    "url", "NATS URL, or several with commas", f"that of `register`, or `{NATS_URL}`",
    "where NATS is; the login is better given elsewhere",
)  # fmt: skip
READ_OPTIONS = (
    Option("stream", "text", "required", "the stream to read"),
    _URL,
    Option(
        "subject", "subject, also with `*` and `>`", "all",
        "only messages whose subjects match",
    ),
    Option(
        "startingSequence", "`earliest`, `latest` or a number from 1", "`earliest`",
        "the first message to read; `latest`, in a stream only, for what is yet to come",
    ),
    Option(
        "startingTime", "time with its zone, such as `2026-01-31T12:00:00Z`", "none",
        "instead: the first message is the first one stored at that time or later",
    ),
    Option(
        "endingSequence", "`latest` or a number from 1", "`latest`",
        "the last message to read; in a batch only",
    ),
    Option(
        "partitions", "whole number from 1", "1",
        "so many tasks read at the same time, each a part of the sequences",
    ),
    Option(
        "maxMessagesPerBatch", "whole number from 1", "no limit",
        "the most messages in a micro-batch; in a stream only",
    ),
    Option(
        "failOnDataLoss", "`true` or `false`", "`true`",
        "fail if messages are gone that were not read yet; `false` goes on with what is there",
    ),
)  # fmt: skip
WRITE_OPTIONS = (
    Option(
        "subject", "subject", "none",
        "where rows go that have no `subject` of their own",
    ),
    _URL,
    Option(
        "retryWait", "duration, such as `250ms`", "250ms",
        "the wait before a message is sent again that no stream answered",
    ),
    Option(
        "retryAttempts", "whole number from 0, or -1", "-1",
        "how often a message is sent again; -1 until `ackWait` is over",
    ),
    Option(
        "ackWait", "duration, such as `5s`", "15s",
        "how long one message may take in all; an election takes four to nine seconds",
    ),
    Option(
        "waitForRoom", "`true` or `false`", "`false`",
        "wait for a full stream, at most `ackWait`",
    ),
    Option(
        "window", "whole number from 1", str(WINDOW),
        "the most messages that a task has on their way; 1 keeps their order in any case",
    ),
)  # fmt: skip
_NAMES = list(dict.fromkeys(option.name for option in (*READ_OPTIONS, *WRITE_OPTIONS)))

# Spark gives a data source its own options as well.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
_ASYNC_PROGRESS = "asyncprogresstracking"
_STREAM = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")
_PATTERN = re.compile(r"(?:[^\s.*>]+|\*)(?:\.(?:[^\s.*>]+|\*))*(?:\.>)?|>")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. ``end`` is ``None`` for the last message there is."""

    stream: str
    subject: str | None
    start: Start
    end: int | None
    partitions: int
    most: int | None
    fail_on_loss: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Reads the options of a read; ``DataSourceError`` for what makes no sense."""
        take = _OptionReader(options, READ_OPTIONS, "writing")
        return cls(
            stream=take.required("stream", _parse_stream, "the name of the stream"),
            subject=take.get("subject", None, _parse_pattern),
            start=_read_start(take),
            end=take.get("endingSequence", None, _parse_ending),
            partitions=take.get("partitions", 1, _parse_positive),
            most=take.get("maxMessagesPerBatch", None, _parse_positive),
            fail_on_loss=take.get("failOnDataLoss", True, _parse_flag),
        )

    def for_batch(self) -> ReadOptions:
        """Returns these options, if a batch can be read with them."""
        if self.start == LATEST:
            raise DataSourceError(
                "Option startingSequence is 'latest', and no message comes after it in a batch.",
                "Write 'earliest' or a number, or use readStream.",
            )
        if self.most is not None:
            raise DataSourceError(
                "Option maxMessagesPerBatch is for streams; a batch reads everything.",
                "Leave it out, or set endingSequence.",
            )
        if self.end is not None and isinstance(self.start, int) and self.start > self.end:
            raise DataSourceError(
                f"Option startingSequence is {self.start}, behind endingSequence {self.end}.",
                "Write a number that is not behind it.",
            )
        return self

    def for_stream(self) -> ReadOptions:
        """Returns these options, if a stream can be read with them."""
        if self.end is not None:
            raise DataSourceError(
                "Option endingSequence is for batches; a stream has no end.",
                "Leave it out, or use read in place of readStream.",
            )
        return self


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows without a subject go, and how hard to try."""

    subject: str | None
    publish: PublishOptions
    window: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Reads the options of a write; ``DataSourceError`` for what makes no sense."""
        take = _OptionReader(options, WRITE_OPTIONS, "reading")
        return cls(
            subject=take.get("subject", None, _parse_subject),
            publish=PublishOptions(
                retry_wait=take.get("retryWait", 0.25, _parse_seconds),
                retry_attempts=take.get("retryAttempts", -1, _parse_attempts),
                ack_wait=take.get("ackWait", 15.0, _parse_seconds),
                wait_for_room=take.get("waitForRoom", False, _parse_flag),
            ),
            window=take.get("window", WINDOW, _parse_positive),
        )


def check_names(options: Mapping[str, str]) -> None:
    """Refuses options that there are not."""
    known = _SPARKS_OWN.union(name.lower() for name in _NAMES)
    for name in options:
        if name in known or name.startswith(_ASYNC_PROGRESS):
            continue
        if name == "path":
            raise DataSourceError(
                "There is no path: streams have names.", "Call load(), save() and start() without."
            )
        meant = did_you_mean(name, _NAMES, "there are")
        raise DataSourceError(f"There is no option {name!r}; {meant}")


def locate_server(url: str | None, login: Login | None) -> Addresses:
    """Returns where NATS is and how to log in; the environment says so where nothing else does."""
    try:
        server = find_own_server(url, login)
    except SetupError as error:
        step = error.next_step.replace("--nats", "the option url")
        raise DataSourceError(error.what, step) from None
    if server is None:
        raise DataSourceError(
            "It is not said where NATS is.",
            f"Set {NATS_URL} before register(spark) is called, or the option url.",
        )
    return server


class _OptionReader:
    """The options as the user wrote them, taken one by one."""

    def __init__(self, texts: Mapping[str, str], options: Iterable[Option], other: str) -> None:
        """``other`` is what the rest of the options is for."""
        self._texts = texts
        mine = {option.name for option in options}
        for name in _NAMES:
            if name not in mine and self.has(name):
                raise DataSourceError(f"Option {name} is for {other}.", "Leave it out.")

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def get(self, name: str, default: T, parse: Callable[[str], T]) -> T:
        return self._parse(name, parse) if self.has(name) else default

    def required(self, name: str, parse: Callable[[str], T], what: str) -> T:
        if not self.has(name):
            raise DataSourceError(f"Option {name} is missing.", f"Write {what}.")
        return self._parse(name, parse)

    def _parse(self, name: str, parse: Callable[[str], T]) -> T:
        text = self._texts[name.lower()]
        try:
            return parse(text.strip())
        except ValueError as error:
            raise DataSourceError(f"Option {name} is {text!r}.", f"Write {error}.") from None


# Each of these raises a ValueError that says what to write instead.


def _parse_stream(text: str) -> str:
    if not _STREAM.fullmatch(text):
        raise ValueError("the name of a stream; a filter belongs in the option subject")
    return text


def _parse_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError("names joined by dots, such as orders.new, orders.* or orders.>")
    return text


def _parse_subject(text: str) -> str:
    try:
        check_subject(text)
    except ValueError:
        raise ValueError("names joined by dots, without spaces, * or >") from None
    return text


def _parse_number(text: str) -> int:
    # Digits only: int() also takes 1_000 and other alphabets.
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0


def _parse_positive(text: str) -> int:
    if _parse_number(text) < 1:
        raise ValueError("a whole number from 1")
    return _parse_number(text)


def _parse_attempts(text: str) -> int:
    if text == "-1":
        return -1
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("a whole number from 0, or -1 to go on until ackWait is over")
    return int(text)


def _parse_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _parse_seconds(text: str) -> float:
    try:
        seconds = milliseconds(text) / 1000
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError("a duration above 0, such as 250ms, 5s or 1m30s")
    return seconds


def _read_start(take: _OptionReader) -> Start:
    if take.has("startingTime") and take.has("startingSequence"):
        raise DataSourceError(
            "Options startingSequence and startingTime both say where to begin.",
            "Leave one of them out.",
        )
    since: Start | None = take.get("startingTime", None, _parse_moment)
    return take.get("startingSequence", EARLIEST, _parse_starting) if since is None else since


def _parse_starting(text: str) -> Start:
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if _parse_number(text) < 1:
        raise ValueError("earliest, latest or a whole number from 1")
    return _parse_number(text)


def _parse_ending(text: str) -> int | None:
    if text == "latest":
        return None
    if _parse_number(text) < 1:
        raise ValueError("latest or a whole number from 1")
    return _parse_number(text)


def _parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.utcoffset() is None:
        raise ValueError("a time with its zone, such as 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC)
