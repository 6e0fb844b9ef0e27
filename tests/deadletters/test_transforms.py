"""What a function says about a letter is what becomes of it; nothing is lost by a mistake."""

from __future__ import annotations

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
def test_what_goes_back(result: Any, expected: Any) -> None:
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
def test_what_stays(result: Any, why: str) -> None:
    fate = transform_letter(LETTER, lambda letter: result)
    assert isinstance(fate, Stays)
    assert why in fate.why


def test_whatever_a_function_raises_the_letter_stays_and_the_line_is_named() -> None:
    def broken(letter: Letter) -> bytes:
        raise KeyError("customer")

    def patient(letter: Letter) -> bytes:
        nack(reason="the shop is closed")
        return b""

    def leaves(letter: Letter) -> bytes:
        raise SystemExit(9)

    fate = transform_letter(LETTER, leaves)
    assert isinstance(fate, Stays)
    assert fate.why.startswith("the transform raised SystemExit: 9 (test_transforms.py:")
    fate = transform_letter(LETTER, broken)
    assert isinstance(fate, Stays)
    assert fate.why.startswith("the transform raised KeyError: 'customer' (test_transforms.py:")
    fate = transform_letter(LETTER, patient)
    assert isinstance(fate, Stays)
    assert "the shop is closed" in fate.why


def test_without_a_function_the_letter_goes_back_as_it_is() -> None:
    assert transform_letter(LETTER, None) is LETTER


def test_an_edit_replaces_what_it_names() -> None:
    assert LetterEdit()(LETTER) == LETTER
    edit = LetterEdit(b"new", ["k"], {"h": "v"})
    assert edit(LETTER) == replace(LETTER, value=b"new", keys=["k"], headers={"h": "v"})


def test_the_story_of_a_message_is_told_over_several_lives_and_does_not_grow_without_end() -> None:
    letter = LETTER
    for number in range(1, 9):
        story = letter.headers_for_replay(number, NOON)
        letter = replace(letter, headers=letter.headers | story, deliveries=number)
    assert letter.replays == 8
    assert [death.number for death in letter.history] == [4, 5, 6, 7, 8]
    assert letter.history[-1].died == LETTER.last_seen
    assert Letter.from_message(b"", letter.to_headers()).history == letter.history
    assert replace(LETTER, headers={"Ebbflow-History": "[1]", "Ebbflow-Replays": "x"}).history == ()
