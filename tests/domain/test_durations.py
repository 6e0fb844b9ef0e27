import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import NackOptions
from ebbflow.domain.durations import DEFAULT_ON_ERROR, Backoff, milliseconds


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


EXAMPLE = "is not a duration; write for example 700ms, 5s or 1m30s"


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (timedelta(), 0),
        (timedelta(seconds=5), 5000),
        (timedelta(milliseconds=70), 70),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=1, microseconds=1), 2),
        ("0s", 0),
        ("700ms", 700),
        ("5s", 5000),
        ("1m30s", 90_000),
        ("1h1m1s1ms", 3_661_001),
        ("1.5s", 1500),
        (".5s", 500),
        ("0.07s", 70),
        ("0.57s", 570),
        ("1.1s", 1100),
        ("1ns", 1),
        ("1us", 1),
        ("1µs", 1),
        ("1000us", 1),
        ("1000001ns", 2),
        (" 5s\n", 5000),
    ],
    ids=repr,
)
def test_a_duration_is_whole_milliseconds_rounded_up(duration, expected):
    assert milliseconds(duration) == expected
    assert NackOptions(delay=duration).delay == expected


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ("", f"'' {EXAMPLE}"),
        ("5", f"'5' {EXAMPLE}"),
        ("-5s", f"'-5s' {EXAMPLE}"),
        ("5 s", f"'5 s' {EXAMPLE}"),
        ("5s later", f"'5s later' {EXAMPLE}"),
        ("1d", f"'1d' {EXAMPLE}"),
        ("١s", f"'١s' {EXAMPLE}"),  # noqa: RUF001
        ("s", f"'s' {EXAMPLE}"),
        (timedelta(milliseconds=-1), f"{timedelta(milliseconds=-1)!r} is not a duration from 0 up"),
        (30, '30 has no unit; write "30s" or timedelta(seconds=30)'),
        (0.5, '0.5 has no unit; write "0.5s" or timedelta(seconds=0.5)'),
        (-1, '-1 has no unit; write "5s" or timedelta(seconds=5)'),
        (float("nan"), 'nan has no unit; write "5s" or timedelta(seconds=5)'),
        ([5], '[5] is not a duration; write "5s" or timedelta(seconds=5)'),
        (b"5s", "b'5s' is not a duration; write \"5s\" or timedelta(seconds=5)"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_invalid_duration_is_rejected(duration, message):
    with pytest.raises(ValueError, match=exactly(message)):
        milliseconds(duration)


@given(st.integers(0, 10**12))
def test_the_same_duration_is_the_same_number_however_it_is_written(ms):
    assert (
        milliseconds(f"{ms}ms")
        == milliseconds(timedelta(milliseconds=ms))
        == NackOptions(delay=ms).delay
        == ms
    )
    assert milliseconds(f"{ms // 1000}.{ms % 1000:03d}s") == ms


@given(st.timedeltas(timedelta(), timedelta(days=9999)))
def test_rounding_never_shortens_a_wait_and_adds_less_than_a_millisecond(duration):
    late = timedelta(milliseconds=milliseconds(duration)) - duration
    assert timedelta() <= late < timedelta(milliseconds=1)


@pytest.mark.parametrize("ask", [Backoff, lambda wait: Backoff("1s", cap=wait)])
def test_a_back_off_rejects_numbers_without_a_unit(ask):
    with pytest.raises(
        ValueError, match=exactly('5 has no unit; write "5s" or timedelta(seconds=5)')
    ):
        ask(5)
    assert ask(timedelta(seconds=5)) == ask("5s")


@pytest.mark.parametrize(("delay", "expected"), [(0, 0), (1500, 1500), (0.2, 1), (1e-9, 1)])
def test_the_delay_of_nack_options_may_be_a_number_of_milliseconds(delay, expected):
    assert NackOptions(delay=delay).delay == expected


@pytest.mark.parametrize("delay", [-1, -0.5, float("nan"), float("inf"), 2**53, 10**400], ids=repr)
def test_an_invalid_number_of_milliseconds_is_rejected(delay):
    message = f"{delay!r} is not a delay in milliseconds from 0 up"
    with pytest.raises(ValueError, match=exactly(message)):
        NackOptions(delay=delay)


def test_retries_after_an_exception_wait_one_second_doubling_up_to_a_minute():
    waits = [DEFAULT_ON_ERROR.wait(retry) for retry in range(1, 9)]
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
    assert DEFAULT_ON_ERROR.steps == 5


backoffs = st.builds(
    Backoff,
    interval=st.integers(0, 10**6).map(lambda ms: timedelta(milliseconds=ms)),
    steps=st.integers(0, 10),
    factor=st.floats(1, 1e9),
    cap=st.integers(0, 2**32 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    jitter=st.floats(0, 1),
)


@given(backoffs, st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_stays_within_its_cap_and_jitter(backoff, retry, chance):
    wait = backoff.wait(retry, chance)
    assert isinstance(wait, int)
    assert 0 <= wait <= backoff.cap
    if retry == 1:
        assert wait >= min(int(backoff.interval * (1 - backoff.jitter)), backoff.cap)
        assert wait <= backoff.interval * (1 + backoff.jitter)


@given(backoffs, st.integers(1, 500))
def test_waits_without_jitter_never_shrink(backoff, retry):
    assert backoff.wait(retry) <= backoff.wait(retry + 1)


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 500), (0.5, 1000), (0.75, 1250)])
def test_jitter_spreads_evenly_around_the_wait(chance, expected):
    assert Backoff("1s", 1, jitter=0.5).wait(1, chance) == expected


def test_a_back_off_without_steps_never_ends():
    forever = Backoff("500ms", factor=2.0, cap="30s")
    assert [forever.seconds(retry) for retry in (1, 2, 3, 10_000)] == [0.5, 1.0, 2.0, 30.0]
