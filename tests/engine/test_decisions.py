"""Decisions are written only by their own methods."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import ebbflow
from ebbflow.domain.outcome import DONE, DeadLetter
from ebbflow.engine.verdict import Decisions, Verdict
from tests.engine.sample_rows import some, verdict_on

SOURCE = Path(ebbflow.__file__).parent
FIELDS = {field.name for field in fields(Decisions)}
CHANGES = {"append", "clear", "extend", "insert", "pop", "popitem", "setdefault", "update"}


def properties_of(owner: type) -> list[str]:
    return [name for name, member in vars(owner).items() if isinstance(member, property)]


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_no_field_of_decisions_can_be_assigned(name):
    """At least not unnoticed: the test over all modules finds it."""
    assert list(writes(ast.parse(f"verdict.decisions.{name} = None")))


def test_decisions_have_no_other_field():
    with pytest.raises(AttributeError):
        Decisions().outcome = None


@pytest.mark.parametrize("name", properties_of(Verdict))
def test_no_decision_of_a_verdict_can_be_assigned(name):
    with pytest.raises(AttributeError):
        setattr(verdict_on(some("a")), name, None)


def is_of_decisions(node: ast.expr) -> bool:
    """Whether this reads a field of decisions, or of a verdict: ``verdict.outcomes``."""
    if not isinstance(node, ast.Attribute) or node.attr.removeprefix("_") not in FIELDS:
        return False
    owner = ast.unparse(node.value)
    return owner.endswith(("verdict", "decisions", "part", "piece"))


def writes(tree: ast.AST) -> Iterator[str]:
    """Where such a field, or what is in it, is changed."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = node.targets
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Delete():
                targets = node.targets
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in CHANGES:
                targets = [value]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                field = part.value if isinstance(part, ast.Subscript) else part
                if is_of_decisions(field):
                    yield f"line {node.lineno}: {ast.unparse(part)}"


def test_a_write_from_outside_is_detected():
    code = "verdict.outcomes[0] = x\nself._verdict.decisions.failed.pop(1)\npart._written += 1\n"
    assert len(list(writes(ast.parse(code)))) == 3
    assert list(writes(ast.parse("found = verdict.outcomes[0]\nself.outputs = x\n"))) == []


def test_only_the_methods_of_decisions_write_them():
    found = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := list(writes(without_decisions(path))))
    }
    assert found == {}


def without_decisions(path: Path) -> ast.Module:
    """The module without the class ``Decisions``, which alone may write its fields."""
    tree = ast.parse(path.read_text())
    tree.body = [
        n for n in tree.body if not (isinstance(n, ast.ClassDef) and n.name == "Decisions")
    ]
    return tree


def test_rows_retried_under_other_rules_keep_their_decisions():
    verdict = verdict_on(some("a", "b"))
    verdict.under(verdict.rules).decisions.finish(1, DeadLetter("no"))
    assert verdict.outcomes == {1: DeadLetter("no")}


def test_a_part_of_a_verdict_starts_without_earlier_decisions():
    verdict = verdict_on(some("a", "b"))
    verdict.decisions.finish(0, DONE)
    part = verdict.part_at([1])
    assert (part.rows.column("id"), part.outcomes) == (["b"], {})
