from dataclasses import fields, replace
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine.dead_letter import PREFIX, Letter
from tests.engine.sample_rows import NOW, maps, metadata, texts, times

anything = st.text(max_size=30)

letters = st.builds(
    Letter,
    id=anything,
    vertex=texts,
    value=st.binary(max_size=40),
    reason=anything,
    error=st.none() | anything,
    traceback=st.none() | anything,
    deliveries=st.integers(1, 2**32),
    first_seen=st.none() | times,
    last_seen=times,
    event_time=st.none() | times,
    keys=st.lists(texts, max_size=3),
    headers=maps,
    metadata=metadata,
    size=st.none() | st.integers(0, 2**32),
    unread=st.booleans(),
)


def size_of(letter: Letter) -> int:
    """The size of the dead letter on the wire, as the server counts it."""
    head = "".join(f"{name}: {text}\r\n" for name, text in letter.to_headers().items())
    return len(f"NATS/1.0\r\n{head}\r\n".encode()) + len(letter.value)


@pytest.mark.guarantee("dead-letters-are-complete")
@given(letters)
def test_a_dead_letter_is_read_back_from_its_headers_and_body(letter):
    assert Letter.from_message(letter.value, letter.to_headers()) == letter


@given(letters)
def test_foreign_headers_are_ignored(letter):
    headers = letter.to_headers() | {"Nats-Msg-Id": "x", "Traceparent": "not json"}
    assert Letter.from_message(letter.value, headers) == letter


@given(letters)
def test_every_header_is_one_line_of_plain_ascii(letter):
    for name, text in letter.to_headers().items():
        assert name.startswith(PREFIX)
        assert text.isascii()
        assert text.isprintable() or "\x7f" in text
        assert text == text.strip() != ""


@pytest.mark.parametrize(
    "text", ["two\nlines", "tab\t", "ümläut ✓ 😀", "\r\nInjected: yes", "\x00"]
)
def test_no_text_can_escape_from_its_header(text):
    letter = replace(SMALL, reason=text, error=text, headers={text: text}, keys=[text])
    head = "".join(letter.to_headers().values())
    assert not set("\r\n\x00") & set(head)
    assert Letter.from_message(b"", letter.to_headers()).headers == {text: text}


def test_absent_fields_have_no_header():
    assert {name.removeprefix(PREFIX) for name in SMALL.to_headers()} == {
        "Id", "Vertex", "Reason", "Deliveries", "Last-Seen"
    }  # fmt: skip


def test_times_are_written_in_utc():
    local = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert replace(SMALL, last_seen=local).to_headers() == SMALL.to_headers()


SMALL = Letter(
    id="a",
    vertex="v",
    value=b"",
    reason="no",
    error=None,
    traceback=None,
    deliveries=1,
    first_seen=None,
    last_seen=NOW,
    event_time=None,
    keys=[],
    headers={},
    metadata={},
)
LIMIT = 16 * 1024


@given(letters)
def test_a_small_dead_letter_is_not_changed(letter):
    assert letter.fitting(LIMIT) is letter


lengths = st.sampled_from([0, 10, 1_000, 12_000, 15_000, 20_000, 100_000])


@pytest.mark.guarantee("dead-letters-are-complete")
@given(st.fixed_dictionaries({f.name: lengths for f in fields(Letter)}))
def test_a_dead_letter_always_fits_and_keeps_its_identity(length):
    letter = replace(
        SMALL,
        id="i" * min(length["id"], 1_000),
        value=b"v" * length["value"],
        reason="😀" * length["reason"],
        error="e" * length["error"],
        traceback="t" * length["traceback"],
        keys=["k" * length["keys"]],
        headers={"h": "x" * length["headers"]},
        metadata={"g": {"m": b"x" * length["metadata"]}},
    )
    fitted = letter.fitting(LIMIT)
    assert size_of(fitted) <= LIMIT - 900, "room for the headers that publishing adds"
    assert (fitted.id, fitted.vertex, fitted.deliveries) == (letter.id, "v", 1)
    assert letter.reason.startswith(fitted.reason)
    assert letter.value.startswith(fitted.value)
    if fitted != letter:
        assert fitted.size == len(letter.value)
    assert Letter.from_message(fitted.value, fitted.to_headers()) == fitted


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("fact", ["metadata", "headers", "keys"])
def test_headers_never_exceed_the_servers_limit_however_large_a_message_may_be(fact):
    large = "x" * 100_000
    facts = {"metadata": {"g": {"m": large.encode()}}, "headers": {"h": large}, "keys": [large]}
    letter = replace(SMALL, value=b"v" * 1_000, error="why", **{fact: facts[fact]})
    fitted = letter.fitting(8 * 1024 * 1024)
    assert sum(len(k) + len(v) + 4 for k, v in fitted.to_headers().items()) < 2**16 - 1_000
    assert fitted.value == letter.value
    assert fitted.size == 1_000, "it cannot be replayed as it was"
    assert fitted.error == f"why; the dead letter has no room for its {fact}"


def test_the_value_is_cut_before_any_header_is_left_out():
    letter = replace(SMALL, value=b"v" * 2 * LIMIT, traceback="t" * 4_000, headers={"h": "x"})
    fitted = letter.fitting(LIMIT)
    assert (fitted.traceback, fitted.headers) == (letter.traceback, letter.headers)
    assert len(fitted.value) > LIMIT - 6_000
    assert fitted.size == 2 * LIMIT


def test_headers_that_are_left_out_make_room_for_the_value():
    letter = replace(SMALL, value=b"v" * 1_000, headers={"h": "x" * LIMIT})
    assert letter.fitting(LIMIT).value == letter.value
