"""Names: a class name means one thing in the whole engine."""

import ast
from collections import defaultdict
from pathlib import Path

import ebbflow

SOURCE = Path(ebbflow.__file__).parent


def classes() -> dict[str, list[str]]:
    """The modules that define a class of each name, but those for tests."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.parts[0] != "testing":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].append(str(place))
    return modules


def test_no_two_classes_of_the_engine_have_the_same_name():
    twice = {name: places for name, places in classes().items() if len(places) > 1}
    assert twice == {}
