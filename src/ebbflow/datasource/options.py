"""The options of the data source: their names, values and meanings.

``READ_OPTIONS`` and ``WRITE_OPTIONS`` have a row for each option; options are parsed and the
reference page is generated from these rows. An option that is unknown, out of place or invalid is
refused before anything is read or written. The error names the option and what to write instead.

Options are plain dataclasses rather than pydantic models because every process that Spark starts
for a read or a write imports this module, and pydantic would be too slow to import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from ebbflow.domain.durations import to_seconds
from ebbflow.domain.errors import DataSourceError, SetupError
from ebbflow.domain.spelling import did_you_mean
from ebbflow.nats.bulk import WINDOW
from ebbflow.nats.locate import NATS_URL, find_own_server
from ebbflow.nats.login import Addresses, Login
from ebbflow.nats.publish import PublishOptions, check_subject

Start = Literal["earliest", "latest"] | int | datetime
"""Where to begin: earliest, latest, the sequence of the first message, or a time."""

EARLIEST: Start = "earliest"
LATEST: Start = "latest"

# Digits only: int() also accepts 1_000 and digits of other alphabets.
_NUMBER, _POSITIVE = r"[0-9]{1,18}", r"(?=0*[1-9])[0-9]{1,18}"
_NAME = r"[^\s.*>]+"
# Spark also passes its own options to a data source.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
_ASYNC_PROGRESS = "asyncprogresstracking"


@dataclass(frozen=True, slots=True)
class Kind:
    """The valid texts of an option: ``wanted`` describes them, ``pattern`` matches them.

    ``convert`` returns the value of a text, and may refuse it with a ``ValueError``.
    """

    wanted: str
    pattern: str
    convert: Callable[[str], Any] = str

    def read(self, text: str) -> Any:
        """Returns the value of a text; ``ValueError`` if it is invalid."""
        if not re.fullmatch(self.pattern, text):
            raise ValueError(text)
        return self.convert(text)


def _to_subject(text: str) -> str:
    check_subject(text)
    return text


def _to_start(text: str) -> Start:
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    return int(text)


def _to_end(text: str) -> int | None:
    return None if text == "latest" else int(text)


def _to_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError("it has no time zone")
    return moment.astimezone(UTC)


def _to_seconds(text: str) -> float:
    if (seconds := to_seconds(text)) <= 0:
        raise ValueError("it is not above 0")
    return seconds


_ANY = r"(?s:.*)"
_STREAM = Kind(
    "the name of a stream; a filter belongs in the option subject", r"[^\s.*>/\\\x00-\x1f\x7f]+"
)
_FILTER = Kind(
    "names joined by dots, such as orders.new, orders.* or orders.>",
    rf"(?:{_NAME}|\*)(?:\.(?:{_NAME}|\*))*(?:\.>)?|>",
)
_SUBJECT = Kind("names joined by dots, without spaces, * or >", _ANY, _to_subject)
_COUNT = Kind("a whole number from 1", _POSITIVE, int)
_STARTING = Kind(
    "earliest, latest or a whole number from 1", f"earliest|latest|{_POSITIVE}", _to_start
)
_ENDING = Kind("latest or a whole number from 1", f"latest|{_POSITIVE}", _to_end)
_MOMENT = Kind("a time with its zone, such as 2026-01-31T12:00:00Z", _ANY, _to_moment)
_ATTEMPTS = Kind(
    "a whole number from 0, or -1 to continue until ackWait is over", f"-1|{_NUMBER}", int
)
_DURATION = Kind("a duration above 0, such as 250ms, 5s or 1m30s", _ANY, _to_seconds)
_FLAG = Kind("true or false", "(?i:true|false)", lambda text: text.lower() == "true")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its row in the reference, its kind, and the field that it sets.

    The data source itself reads an option that has neither kind nor field.
    """

    name: str
    value: str
    default: str
    meaning: str
    kind: Kind | None = None
    field: str = ""


_URL = Option(
    "url", "NATS URL, or several with commas", f"that of `register`, or `{NATS_URL}`",
    "the address of NATS; better without the login",
)  # fmt: skip
READ_OPTIONS = (
    Option("stream", "text", "required", "the stream to read", _STREAM, "stream"),
    _URL,
    Option(
        "subject", "subject, also with `*` and `>`", "all",
        "only messages whose subjects match",
        _FILTER, "subject",
    ),
    Option(
        "startingSequence", "`earliest`, `latest` or a number from 1", "`earliest`",
        "the first message to read; `latest`, in a stream only, for new messages",
        _STARTING, "start",
    ),
    Option(
        "startingTime", "time with its zone, such as `2026-01-31T12:00:00Z`", "none",
        "instead: the first message is the first one stored at that time or later",
        _MOMENT, "start",
    ),
    Option(
        "endingSequence", "`latest` or a number from 1", "`latest`",
        "the last message to read; in a batch only",
        _ENDING, "end",
    ),
    Option(
        "partitions", "whole number from 1", "1",
        "this many tasks read at the same time, each a part of the sequences",
        _COUNT, "partitions",
    ),
    Option(
        "maxMessagesPerBatch", "whole number from 1", "no limit",
        "the most messages in a micro-batch; in a stream only",
        _COUNT, "most",
    ),
    Option(
        "failOnDataLoss", "`true` or `false`", "`true`",
        "fail if unread messages are gone; `false` continues with the messages that are left",
        _FLAG, "fail_on_loss",
    ),
)  # fmt: skip
WRITE_OPTIONS = (
    Option(
        "subject", "subject", "none",
        "where rows without a `subject` go",
        _SUBJECT, "subject",
    ),
    _URL,
    Option(
        "retryWait", "duration, such as `250ms`", "250ms",
        "the wait before a message that no stream acknowledged is sent again",
        _DURATION, "retry_wait",
    ),
    Option(
        "retryAttempts", "whole number from 0, or -1", "-1",
        "how often a message is sent again; -1 until `ackWait` is over",
        _ATTEMPTS, "retry_attempts",
    ),
    Option(
        "ackWait", "duration, such as `5s`", "15s",
        "how long one message may take in total; an election takes four to nine seconds",
        _DURATION, "ack_wait",
    ),
    Option(
        "waitForRoom", "`true` or `false`", "`false`",
        "wait for a full stream, at most `ackWait`",
        _FLAG, "wait_for_room",
    ),
    Option(
        "window", "whole number from 1", str(WINDOW),
        "the most messages that a task has in flight; 1 keeps their order in any case",
        _COUNT, "window",
    ),
)  # fmt: skip
_NAMES = list(dict.fromkeys(option.name for option in (*READ_OPTIONS, *WRITE_OPTIONS)))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. ``end`` is ``None`` for the last message of the stream."""

    stream: str
    subject: str | None = None
    start: Start = EARLIEST
    end: int | None = None
    partitions: int = 1
    most: int | None = None
    fail_on_loss: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parses the options of a read; ``DataSourceError`` for invalid ones."""
        _refuse_others(options, READ_OPTIONS, "writing")
        if "stream" not in options:
            raise DataSourceError("Option stream is missing.", "Write the name of the stream.")
        return cls(**_read_fields(options, READ_OPTIONS))

    def for_batch(self) -> ReadOptions:
        """Returns these options; refuses those that are not for a batch."""
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
                f"Option startingSequence is {self.start}, after endingSequence {self.end}.",
                "Write a number up to endingSequence.",
            )
        return self

    def for_stream(self) -> ReadOptions:
        """Returns these options; refuses those that are not for a stream."""
        if self.end is not None:
            raise DataSourceError(
                "Option endingSequence is for batches; a stream has no end.",
                "Leave it out, or use read in place of readStream.",
            )
        return self


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The subject of rows without one, and the options of publishing."""

    subject: str | None
    publish: PublishOptions
    window: int = WINDOW

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parses the options of a write; ``DataSourceError`` for invalid ones."""
        _refuse_others(options, WRITE_OPTIONS, "reading")
        fields = _read_fields(options, WRITE_OPTIONS)
        subject, window = fields.pop("subject", None), fields.pop("window", WINDOW)
        return cls(subject, PublishOptions(**_PUBLISHING | fields), window)


_PUBLISHING: dict[str, Any] = {"retry_attempts": -1, "ack_wait": 15.0}
"""Options that differ from the defaults of ``publish``, because no caller retries for a task."""


def _refuse_others(texts: Mapping[str, str], options: Iterable[Option], other: str) -> None:
    """Refuses options that are only for the ``other`` direction."""
    mine = {option.name for option in options}
    for name in _NAMES:
        if name not in mine and name.lower() in texts:
            raise DataSourceError(f"Option {name} is for {other}.", "Leave it out.")


def _read_fields(texts: Mapping[str, str], options: Iterable[Option]) -> dict[str, Any]:
    """Returns the values of the options that are set, by field."""
    fields: dict[str, Any] = {}
    for option in options:
        if option.kind is None or option.name.lower() not in texts:
            continue
        if option.field in fields:
            raise DataSourceError(
                "Options startingSequence and startingTime both say where to begin.",
                "Leave one of them out.",
            )
        fields[option.field] = _read_text(option.name, option.kind, texts[option.name.lower()])
    return fields


def _read_text(name: str, kind: Kind, text: str) -> Any:
    try:
        return kind.read(text.strip())
    except ValueError:
        raise DataSourceError(f"Option {name} is {text!r}.", f"Write {kind.wanted}.") from None


def check_names(options: Mapping[str, str]) -> None:
    """Refuses unknown options."""
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
    """Returns the address of NATS and the login. Both default to the environment."""
    try:
        server = find_own_server(url, login)
    except SetupError as error:
        step = error.next_step.replace("--nats", "the option url")
        raise DataSourceError(error.what, step) from None
    if server is None:
        raise DataSourceError(
            "The address of NATS is not set.",
            f"Set {NATS_URL} before register(spark) is called, or the option url.",
        )
    return server
