"""Decides whether, when and how often a message is redelivered: the rules of nack and exceptions.

Guarantees: ``max_deliveries: n`` allows exactly n redeliveries; a redelivery is never due before
the delay asked for is over; an exception can be retried only as often as the policy says.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from pathlib import PurePath

from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import (
    ContractViolation,
    EbbflowError,
    MessageTooLarge,
    SparkError,
    StreamBroken,
)
from ebbflow.domain.message import NackOptions
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver

MAX_ERROR = 2_000
MAX_TRACEBACK = 8_000

# Delays are rounded up to a grid so that rows nacked together share a frame.
_GRID = ((1_000, 10), (60_000, 100))
_COARSE = 1_000

_NO_OPTIONS = NackOptions()

_OWN = str(PurePath(__file__).parent.parent)
_DEMO = str(PurePath(_OWN, "cli", "demo", "steps.py"))

# The name of an exception at the beginning of a function's error: ``ValueError: …`` from functions
# that Ebbflow serves, ``ValueError('…')`` from Numaflow's Python SDK.
_ERROR_NAME = re.compile(r"([A-Za-z_][\w.]*)[:(]")


def decide_nack(options: NackOptions | None, deliveries: int, failures: int) -> Outcome:
    """Returns the outcome of a nack of a message that has been delivered ``deliveries`` times."""
    asked = _NO_OPTIONS if options is None else options
    reason = asked.reason
    if reason is not None and len(reason) > MAX_ERROR:
        reason = shorten(reason)
    if asked.max_deliveries is not None and deliveries > asked.max_deliveries:
        return DeadLetter(
            reason or "nacked",
            error=_used_up(deliveries - 1, asked.max_deliveries),
            nacked=True,
        )
    return Redeliver(asked.delay or 0, reason, failures, asked)


def _used_up(redeliveries: int, allowed: int) -> str:
    times = "once" if redeliveries == 1 else f"{redeliveries} times"
    return f"redelivered {times}, max_deliveries is {allowed}"


def decide_error(
    error: BaseException, failures: int, policy: Backoff, chance: float = 0.5
) -> Outcome:
    """Returns the outcome of an exception: back-off, or a dead letter when that is used up.

    A ``Nack`` is not an error: use ``decide_nack`` for it.
    """
    text = describe_error(error)
    if isinstance(error, MessageTooLarge) or failures >= policy.steps:
        return DeadLetter(_reason(error), error=text, traceback=_trace(error))
    return Redeliver(policy.wait(failures + 1, chance), text, failures + 1)


def _trace(error: BaseException) -> str | None:
    """Returns where user code failed, if that is known."""
    if isinstance(error, StreamBroken):
        return _keep_end(error.trace) or None
    # The text of a violation or of a Spark error is enough; the traceback would be Ebbflow's own.
    by_text = isinstance(error, ContractViolation | SparkError)
    return None if by_text else format_traceback(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, SparkError):
        return error.kind
    if isinstance(error, StreamBroken) and (own := _ERROR_NAME.match(error.said)):
        return own[1]
    return "message too large" if isinstance(error, MessageTooLarge) else type(error).__name__


def describe_error(error: BaseException) -> str:
    """Returns type and text of an error on one line, cut to a length that fits a header."""
    try:
        text = str(error)
    except Exception:  # an error whose text cannot be made must not raise a second one
        text = "(its text cannot be shown)"
    described = text if isinstance(error, SparkError) else f"{type(error).__name__}: {text}"
    if isinstance(error, StreamBroken):
        described = error.said or described
    return shorten(" ".join(described.split()))


def shorten(text: str) -> str:
    """Returns the text cut to a length that fits a header, without unencodable characters."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 1] + "…"


def format_traceback(error: BaseException) -> str:
    """Returns the traceback; of a long one the end, where the error is.

    It has the frames of user code and of the libraries that it calls. Ebbflow's own frames are left
    out, unless there are no others and Ebbflow did not raise the error on purpose.
    """
    shown = traceback.TracebackException.from_exception(error)
    _leave_out_own(shown)
    if isinstance(error, EbbflowError) and all(is_own(frame.filename) for frame in shown.stack):
        return _keep_end("".join(shown.format_exception_only()))
    return _keep_end("".join(shown.format()))


def _leave_out_own(shown: traceback.TracebackException) -> None:
    """Removes Ebbflow's frames from an error and from those that it was raised from."""
    theirs = [frame for frame in shown.stack if not is_own(frame.filename)]
    if theirs:
        shown.stack[:] = theirs
    for cause in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if cause is not None:
            _leave_out_own(cause)


def is_own(filename: str) -> bool:
    """Returns whether a frame of this file is Ebbflow's own, and no help to authors of user code.

    The steps of the demo are shown: they are read as an example of user code.
    """
    made = (_OWN, "<frozen", "<string>")  # by Ebbflow, by the import system, by dataclasses
    return filename.startswith(made) and not filename.startswith(_DEMO)


def _keep_end(trace: str) -> str:
    text = trace.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TRACEBACK else "…" + text[-MAX_TRACEBACK + 1 :]


def round_delay(delay: int) -> int:
    """Returns the delay that rows with similar delays share: never shorter, at most 1 s longer.

    It depends on the delay alone. If the time of day decided which rows share one, a replay, which
    happens later, would make other frames, and rows that are already stored would be stored twice.
    """
    if delay <= 0:
        return 0
    grid = next((step for below, step in _GRID if delay < below), _COARSE)
    return (delay + grid - 1) // grid * grid


LAST_DUE = 9_214_646_400_000
"""The latest time at which a redelivery can be due: the end of 2261, in epoch milliseconds.

NATS counts nanoseconds in 64 bits, which overflow in 2262, and delivers at once a message that is
scheduled for a later time.
"""


def due_time(now_ms: int, delay: int) -> int:
    """Returns when a redelivery is due, in epoch milliseconds: never early, at most 1 s late."""
    return due_after(now_ms, round_delay(delay))


def due_after(now_ms: int, rounded: int) -> int:
    """Returns the same for a delay that is already rounded."""
    return min(now_ms + rounded, LAST_DUE)


def draw_chance(message_id: str, tries: int) -> float:
    """Returns a number from [0, 1) that makes the wait of a message longer or shorter.

    It is practically random for each message and each try, but the same in a replay: with another
    wait the message would be in another frame, and be stored twice.
    """
    digest = hashlib.blake2b(f"{tries}:{message_id}".encode(), digest_size=6).digest()
    return float(int.from_bytes(digest, "big") / 2**48)
