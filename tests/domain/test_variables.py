"""Variables of one function: references, expanded as in Kubernetes, and how long they are set."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from ebbflow.domain.code import expand, expand_all, literal
from ebbflow.usercode.calling import Handler, in_environment

VARIABLES = {"NAME": "cat", "A.B-c": "dotted", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$(NAME)s", "cats"),
        ("$(NAME)$(NAME)", "catcat"),
        ("$(A.B-c)", "dotted"),
        ("[$(EMPTY)]", "[]"),
        ("$(NO_PARENT)", "$(NO_PARENT)"),
        ("$$(NAME)", "$(NAME)"),
        ("$$$(NAME)", "$cat"),
        ("$NAME ${NAME} $(NAME", "$NAME ${NAME} $(NAME"),
        ("5 $$", "5 $"),
    ],
)
def test_references_are_expanded(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded


def test_a_literal_text_is_not_expanded() -> None:
    for text in ("$(NAME)", "$$", "a$b", "$$(NAME)"):
        assert expand(literal(text), VARIABLES) == text


def test_a_variable_may_refer_to_those_before_it() -> None:
    variables = (("FIRST", "$(NAME)"), ("SECOND", "$(FIRST)$(THIRD)"), ("THIRD", "3"))
    expanded = {"FIRST": "cat", "SECOND": "cat$(THIRD)", "THIRD": "3"}
    assert expand_all(variables, VARIABLES) == expanded


def test_variables_are_set_inside_the_block_and_restored_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EBBFLOW_TEST_BEFORE", "before")
    variables = (("EBBFLOW_TEST_BEFORE", "inside"), ("EBBFLOW_TEST_NEW", "new"))
    with in_environment(variables):
        assert os.environ["EBBFLOW_TEST_BEFORE"] == "inside"
        assert os.environ["EBBFLOW_TEST_NEW"] == "new"
    assert os.environ["EBBFLOW_TEST_BEFORE"] == "before"
    assert "EBBFLOW_TEST_NEW" not in os.environ


class Witness:
    """User code that records the variable at each step of its lifecycle."""

    seen: list[str | None]

    def __init__(self) -> None:
        self.seen = [os.environ.get("EBBFLOW_TEST_KEY")]

    def open(self) -> None:
        self.seen.append(os.environ.get("EBBFLOW_TEST_KEY"))

    def close(self) -> None:
        self.seen.append(os.environ.get("EBBFLOW_TEST_KEY"))

    def __call__(self, _: Any) -> Iterator[Any]:
        return iter(())


def test_user_code_is_created_opened_and_closed_with_its_variables() -> None:
    handler = Handler(Witness, variables=(("EBBFLOW_TEST_KEY", "mine"),))
    first = handler.instance
    handler.renew()
    second = handler.instance
    handler.close()
    assert first.seen == second.seen == ["mine"] * 3
    assert "EBBFLOW_TEST_KEY" not in os.environ
