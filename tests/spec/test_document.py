from collections.abc import Callable
from pathlib import Path

import pytest

from ebbflow.domain.errors import SpecError
from ebbflow.spec.document import read
from ebbflow.spec.lint import lint, load
from ebbflow.spec.validate import Finding

BROKEN = [
    ("", ["1:1: EB004 the file is empty"]),
    ("# only a comment\n---\n", ["1:1: EB004 the file is empty"]),
    (
        "a: [1,\n",
        [
            "2:1: EB002 expected the node content, but found '<stream end>' "
            "while parsing a flow node"
        ],
    ),
    ("a: b: c\n", ["1:5: EB002 mapping values are not allowed here"]),
    (
        "a:\n\tb: 1\n",
        [
            "2:1: EB002 found character '\\t' that cannot start any token "
            "while scanning for the next token: indent with spaces, not with tabs"
        ],
    ),
    (
        "a:\n  b: 1\n c: 2\n",
        [
            "3:2: EB002 expected <block end>, but found '<block mapping start>' while parsing "
            "a block mapping: indent this line like the others of its list or mapping"
        ],
    ),
    ("a: \x07\n", ["1:4: EB002 a character that YAML does not allow: '\\x07'"]),
    (
        "a: !!python/name:os.system\n",
        ["1:4: EB002 the tag 'tag:yaml.org,2002:python/name:os.system' is not allowed here"],
    ),
    ("a: !mine {b: 1}\n", ["1:4: EB002 the tag '!mine' is not allowed here"]),
    ("a: !!int many\n", ["1:4: EB002 'many' does not fit its tag"]),
    ("? [a, b]\n: 1\n", ["1:3: EB002 a key must be a text"]),
    ("a: &a [*a]\n", ["1:4: EB002 an alias that makes the document endless or very large"]),
    ("[" * 3000, ["1:1: EB002 nested too deeply"]),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_a_file_that_cannot_be_parsed_is_reported_with_a_position(
    problems_of: Callable[[str], list[str]], text: str, expected: list[str]
) -> None:
    assert problems_of(text) == expected


def test_exponentially_growing_aliases_are_rejected(
    problems_of: Callable[[str], list[str]],
) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, 8):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]")
    assert problems_of("\n".join(lines))[0].endswith(
        "EB002 an alias that makes the document endless or very large"
    )


def test_a_key_written_twice_is_reported_at_its_second_occurrence(
    problems_of: Callable[[str], list[str]],
) -> None:
    text = "kind: Pod\napiVersion: numaflow.numaproj.io/v1alpha1\nkind: Pod\n"
    assert "3:1: EB003 'kind' is already written in line 1" in problems_of(text)


def test_a_missing_file_and_a_folder_are_problems(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    found = [str(problem) for problem in [*lint(missing), *lint(tmp_path)]]
    assert found == [
        f"{missing}:1:1: EB001 cannot be read: No such file or directory",
        f"{tmp_path}:1:1: EB001 cannot be read: Is a directory",
    ]


def test_loading_a_missing_file_raises_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="EB001 cannot be read: No such file or directory"):
        load(tmp_path / "missing.yaml")


def test_a_file_that_is_not_text_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: \xff\xfe")
    (problem,) = lint(tmp_path / "a.yaml")
    assert (problem.code, problem.message[:33]) == ("EB001", "cannot be read: not UTF-8 text ('")


def test_dates_stay_text_and_unquoted_words_stay_field_names(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("on: 2024-01-01\nyes: [yes, 1, 1.5, null]\n")
    ((document,), problems) = read(tmp_path / "a.yaml")
    assert document.data == {"on": "2024-01-01", "yes": [True, 1, 1.5, None]}
    assert problems == []


def test_merge_keys_are_followed_and_may_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n")
    ((document,), _) = read(tmp_path / "a.yaml")
    assert document.data["b"] == {"x": 3, "y": 2}
    assert document.problems == []


def test_a_problem_with_an_absent_field_points_at_its_parent(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a:\n  b:\n    c: 1\n")
    ((document,), _) = read(tmp_path / "a.yaml")
    problem = document.problem(Finding("EB102", "missing", ("a", "b", "d")))
    assert (problem.line, problem.column) == (3, 5)
