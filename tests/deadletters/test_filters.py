"""Filters by the fields of a dead letter, read from its headers as they are stored."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbflow.deadletters import LetterFilter
from ebbflow.deadletters.filters import LetterRecord
from ebbflow.nats.wire import write_headers
from tests.deadletters.written import LETTER, NOON


def record(**changes: Any) -> LetterRecord:
    letter = replace(LETTER, **changes)
    return LetterRecord(7, write_headers(letter.to_headers()), letter.value)


@pytest.mark.parametrize(
    ("matching", "other"),
    [
        ({"vertex": "enrich"}, {"vertex": "enric"}),
        ({"id": "in-7"}, {"id": "in-"}),
        ({"reason": "valueERROR"}, {"reason": "KeyError"}),
        ({"error": "no CUSTOMER"}, {"error": "customer!"}),
        ({"key": "ERL"}, {"key": "berlin7"}),
        ({"header": "trace"}, {"header": "Trace"}),
        ({"header": "trace=abc"}, {"header": "trace=ab"}),
        ({"text": '"ORDER": 7'}, {"text": "moon"}),
        ({"text": "berlin"}, {"text": "shelf"}),
        ({"text": "trace=abc"}, {"text": "last-seen"}),
        ({"text": "no customer"}, {"text": "traceback"}),
        ({"since": NOON}, {"since": NOON + timedelta(hours=1)}),
        ({"until": NOON + timedelta(hours=1)}, {"until": NOON}),
        ({"until": datetime(2026, 5, 17, 13)}, {"since": datetime(2026, 5, 17, 13)}),
        ({"up_to": 7}, {"up_to": 6}),
    ],
)
def test_a_filter_matches_a_dead_letter_by_its_fields(
    matching: dict[str, Any], other: dict[str, Any]
) -> None:
    assert LetterFilter(**matching).matches(record())
    assert not LetterFilter(**other).matches(record())
    assert not LetterFilter(**matching, **({"id": "x"} if "id" not in matching else {"vertex": "x"})
                            ).matches(record())  # fmt: skip


def test_texts_are_found_whatever_their_case_and_alphabet() -> None:
    letter = record(reason="Größe", keys=["ÅRHUS"], value="ÄPFEL und Birnen".encode())
    for chosen in ({"reason": "GRÖßE"}, {"key": "århus"}, {"text": "äpfel"}, {"text": "größe"}):
        assert LetterFilter(**chosen).matches(letter)


def test_dead_letters_without_a_field_do_not_match_a_filter_on_it() -> None:
    bare = record(error=None, keys=[], headers={})
    for chosen in ({"error": ""}, {"key": ""}, {"header": "trace"}):
        assert not LetterFilter(**chosen).matches(bare) or chosen == {"error": ""}


def test_a_message_that_is_not_a_dead_letter_has_no_fields_and_raises_no_error() -> None:
    junk = LetterRecord(1, b"NATS/1.0\r\nEbbflow-Id: {\r\nEbbflow-Keys: [\r\n\r\n", b"hello")
    since = LetterFilter(since=datetime(2020, 1, 1, tzinfo=UTC))
    chosen = [LetterFilter(id="x"), LetterFilter(key="x"), LetterFilter(reason="x"), since]
    assert [one.matches(junk) for one in chosen] == [False] * 4
    assert LetterFilter(text="hello").matches(junk)


def test_a_filter_knows_whether_it_matches_everything() -> None:
    assert LetterFilter().is_everything
    assert LetterFilter(vertex="v", up_to=3).is_everything
    assert not LetterFilter(text="").is_everything
