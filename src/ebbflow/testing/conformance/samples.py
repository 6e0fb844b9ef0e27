"""The messages that the suite puts into a source: the first word says what becomes of each."""

from __future__ import annotations

from ebbflow.testing.conformance.rules import Sample, SourceUnderTest, UnderTest
from ebbflow.testing.conformance.user_code import DELIVERIES, text_of

_COUNT = 300


def _some(fate: str, count: int, where: str) -> list[Sample]:
    return [Sample(f"{fate} {where} {number}".encode()) for number in range(count)]


PLAIN = _some("plain", _COUNT - _COUNT // 10, "flow")
"""Go through."""
ONCE = _some("once", _COUNT // 10, "flow")
"""Are nacked once."""
LATER = _some("later", 5, "flow")
"""Are nacked twice, each time with a delay."""
LIMITED = _some("limited", 4, "flow")
"""Are nacked for ever, with a limit."""
NEVER = _some("never", 2, "flow")
"""Are nacked with a limit of no redelivery at all."""
FLOW = [
    sample
    for number in range(10)
    for group in (PLAIN, ONCE, LATER, LIMITED, NEVER)
    for sample in group[number::10]
]

HELD = _some("held", 10, "restart")
"""Are nacked with a long delay before the pipeline is stopped."""
SLOW = _some("slow", 200, "restart")
"""Are in hand, or about to be, when the pipeline is stopped."""
MEANWHILE = _some("plain", 20, "meanwhile")
"""Are put while the pipeline is down."""

LATER_CRASH = _some("later", 3, "crash")
LIMITED_CRASH = _some("limited", 3, "crash")
CRASH = [
    *LATER_CRASH,
    *LIMITED_CRASH,
    *_some("plain", 30, "before the crash"),
    *_some("kill", 1, "crash"),
    *_some("plain", 60, "after the crash"),
]

SLOW_CRASH = _some("slow", 60, "crash")
"""Are in hand when the process of the source is killed."""

CALLS = DELIVERIES + 1
"""How often a limited message is given to user code."""


LANDING = _some("plain", _COUNT, "landing")
"""Are to be written by a sink without any faults."""
REFUSED = _some("refused", 5, "target")
"""Are refused by a sink's target, at first."""
ACCEPTED = _some("accepted", 50, "target")
"""Come with those that are refused."""
DOWN = _some("plain", 50, "down")
"""Come while a sink's target is down."""
STOPPED = _some("slow", 300, "stopped")
"""Are on their way through a sink when the pipeline stops."""


def name_of(sample: Sample) -> str:
    """Returns the name by which observations know a message."""
    return text_of(sample.value)


def calls_wanted(name: str) -> int | None:
    """Returns the calls that a message gets which never arrives; ``None`` for all others."""
    return {"limited": CALLS, "never": 1}.get(name.partition(" ")[0])


def flood(under_test: SourceUnderTest) -> list[Sample]:
    """Returns messages for a pipeline that is blocked."""
    return _some("flood", under_test.flood, "blocked")


TOO_LARGE = b"large" * 1_800_000
"""More than any message can hold."""


def odd_values(empty_values: bool, largest: int) -> list[bytes]:
    """Returns values that a connector may stumble over."""
    values = [
        bytes(range(256)),
        b"\0",
        b"\xff\xfe\x00",
        b'{"a": "json", "b": [1, null]}',
        "ünïcödé 💧 \u202e".encode(),
        b" leading and trailing \r\n",
        b"line\nline\r\nline",
        b"%s %d {} \\n ' \" ; --",
        b"x" * min(300_000, largest),
        bytes(range(256)) * (min(largest, 1_000_000) // 256),
    ]
    return [*values, b""] if empty_values else values


def odd(under_test: UnderTest) -> list[Sample]:
    """Returns odd values, and odd keys and headers as far as the connector keeps them."""
    odd_samples = [Sample(v) for v in odd_values(under_test.empty_values, under_test.largest)]
    if isinstance(under_test, SourceUnderTest):
        odd_samples.append(Sample(TOO_LARGE))
    if under_test.keeps_keys:
        odd_samples += [
            Sample(b"keys %d" % number, keys=keys) for number, keys in enumerate(ODD_KEYS)
        ]
    if under_test.keeps_headers:
        odd_samples += [
            Sample(b"headers %d" % number, headers=headers)
            for number, headers in enumerate(ODD_HEADERS)
        ]
    return odd_samples


ODD_KEYS = (("a",), ("ünï", "💧"), (" with blanks ",), ("a/b.c*d>e:f",), ("x" * 200,))
ODD_HEADERS: tuple[dict[str, str], ...] = (
    {"Name": "value"},
    {"X-Long": "v" * 500},
    {"X-Text": "ünïcödé 💧"},
    {"a-b_c": "with blanks, commas; and = signs"},
)
