"""The result of a function decides the outcome of a dead letter; a mistake loses nothing."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace
from typing import Any

import pytest

from ebbflow import Message, NackOptions, nack
from ebbflow.deadletters import LetterEdit
from ebbflow.deadletters.transforms import DROP, Stays, transform_letter
from ebbflow.engine.dead_letter import Letter
from tests.deadletters.written import LETTER, NOON


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (LETTER, LETTER),
        (replace(LETTER, headers={"a": "b"}), replace(LETTER, headers={"a": "b"})),
        (b"new", replace(LETTER, value=b"new")),
        (Message(b"new"), replace(LETTER, value=b"new")),
        ([Message(b"new", keys=["k"])], replace(LETTER, value=b"new", keys=["k"])),
        (
            Message(b"", event_time=NOON, metadata={"g": {"k": b"v"}}),
            replace(LETTER, value=b"", event_time=NOON, metadata={"g": {"k": b"v"}}),
        ),
        (Message.to_drop(), DROP),
        ([Message.to_drop()], DROP),
    ],
)
def test_a_valid_result_is_sent_back_or_dropped(result: Any, expected: Any) -> None:
    assert transform_letter(LETTER, lambda letter: result) == expected


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (None, "returned nothing"),
        ([], "returned 0 messages"),
        ([b"a", b"b"], "returned 2 messages"),
        ("text", "returned str"),
        (Message("text"), "its value became str; encode it to bytes"),  # type: ignore[arg-type]
        (replace(LETTER, value="text"), "its value became str; encode it to bytes"),
        (replace(LETTER, id="other"), "changed its id or its vertex"),
        (Message(b"x", tags=["t"]), "set tags"),
        (Message.to_nack(NackOptions(reason="not yet")), "refused it: not yet"),
        (Message.to_fail("too old"), "refused it: too old"),
    ],
)
def test_a_dead_letter_stays_after_an_invalid_result(result: Any, why: str) -> None:
    outcome = transform_letter(LETTER, lambda letter: result)
    assert isinstance(outcome, Stays)
    assert why in outcome.why


def test_a_dead_letter_stays_whatever_its_function_raises_and_the_line_is_named() -> None:
    def broken(letter: Letter) -> bytes:
        raise KeyError("customer")

    def patient(letter: Letter) -> bytes:
        nack(reason="the shop is closed")
        return b""

    def leaves(letter: Letter) -> bytes:
        raise SystemExit(9)

    def cancels(letter: Letter) -> bytes:
        raise CancelledError

    outcome = transform_letter(LETTER, leaves)
    assert isinstance(outcome, Stays)
    assert outcome.why.startswith("the transform raised SystemExit: 9 (test_transforms.py:")
    outcome = transform_letter(LETTER, cancels)
    assert isinstance(outcome, Stays)
    assert "CancelledError" in outcome.why
    outcome = transform_letter(LETTER, broken)
    assert isinstance(outcome, Stays)
    assert outcome.why.startswith("the transform raised KeyError: 'customer' (test_transforms.py:")
    outcome = transform_letter(LETTER, patient)
    assert isinstance(outcome, Stays)
    assert "the shop is closed" in outcome.why


def test_without_a_function_a_dead_letter_is_sent_back_unchanged() -> None:
    assert transform_letter(LETTER, None) is LETTER


def test_an_edit_replaces_only_the_fields_that_it_names() -> None:
    assert LetterEdit()(LETTER) == LETTER
    edit = LetterEdit(b"new", ["k"], {"h": "v"})
    assert edit(LETTER) == replace(LETTER, value=b"new", keys=["k"], headers={"h": "v"})


def test_the_history_of_a_message_survives_several_replays_and_is_bounded() -> None:
    letter = LETTER
    for number in range(1, 9):
        added = letter.headers_for_replay(number, NOON)
        letter = replace(letter, headers=letter.headers | added, deliveries=number)
    assert letter.replays == 8
    assert [death.number for death in letter.history] == [4, 5, 6, 7, 8]
    assert letter.history[-1].died == LETTER.last_seen
    assert Letter.from_message(b"", letter.to_headers()).history == letter.history
    assert replace(LETTER, headers={"Ebbflow-History": "[1]", "Ebbflow-Replays": "x"}).history == ()
