"""Server-sent events, however the bytes of the stream are cut."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ebbflow.client.conversations import EventLines, ServerEvent

TEXTS = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=20)
NAMES = st.sampled_from(["message", "base64", "done"])
EVENTS = st.lists(st.builds(ServerEvent, NAMES, TEXTS, st.integers(1, 99).map(str)), max_size=5)


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 400)))
def test_events_are_read_however_the_stream_is_cut(
    events: list[ServerEvent], end: str, cuts: list[int]
) -> None:
    sent = "".join(written(event, end) for event in events).encode()
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    lines = EventLines()
    read = [e for a, b in pairwise(places) for e in lines.feed(sent[a:b])]
    read += lines.feed(b"\n" if end == "\r" else b"")
    assert read == events


def written(event: ServerEvent, end: str) -> str:
    data = "".join(f"data: {line}{end}" for line in event.data.split("\n"))
    return f": comment{end}event: {event.name}{end}id: {event.id}{end}{data}{end}"


def test_a_large_event_is_read_in_linear_time_however_many_pieces_it_has() -> None:
    sent = b"data: " + b"x" * 8_000_000 + b"\n\n"
    lines, began = EventLines(), time.process_time()
    read = [e for at in range(0, len(sent), 4_096) for e in lines.feed(sent[at : at + 4_096])]
    assert [len(event.data) for event in read] == [8_000_000]
    # Reading each byte once takes hundredths of a second, reading all again each time far more.
    assert time.process_time() - began < 2


def test_an_event_without_a_name_is_a_result_and_fields_may_have_no_space() -> None:
    assert list(EventLines().feed(b"data:x\nretry: 5\n\n:ping\n\ndata\n\n")) == [
        ServerEvent("message", "x", ""),
        ServerEvent("message", "", ""),
    ]
