"""Names: a class name means one thing in the whole engine."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import ebbflow

SOURCE = Path(ebbflow.__file__).parent


def classes() -> dict[str, list[str]]:
    """The modules that define a class of each name, except those for tests.

    A class that is generated from a section has its name, and means the same.
    """
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.parts[0] != "testing" and place.name != "typed.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].append(str(place))
    return modules


def test_no_two_classes_of_the_engine_have_the_same_name():
    twice = {name: places for name, places in classes().items() if len(places) > 1}
    assert twice == {}


PATCHED = {
    "_AT_A_TIME": "how many messages of a stream are requested at once",
    "_JOINING": "how long nodes may take to join a cluster",
    "_DEAD_LETTERS_ARE_KNOWN": "half of the window in which NATS knows ids",
    "_MOST_FRAMES": "when the ledger is rewritten",
    "_OLD": "the age at which a folder counts as left behind by a launcher",
    "_TRACES": "a cache that is empty at the start of each test",
    "_UNKNOWN_WIDTH": "the width of a table where there is no terminal",
}
"""Private names of modules that tests may set, and what they are; elsewhere they are parameters."""


def test_tests_set_no_private_constants_but_these():
    tests, found = Path(__file__).parent, set()
    for path in tests.rglob("*.py"):
        if path.parts[len(tests.parts)] != "benchmarks":
            patched = r"""monkeypatch\.setattr\(\s*(?:\w+, "|"[\w.]+\.)(_[A-Z_]+)\""""
            found |= set(re.findall(patched, path.read_text(encoding="utf-8")))
    assert found == set(PATCHED)
