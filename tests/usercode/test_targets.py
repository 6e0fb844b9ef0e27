import subprocess
import sys
from pathlib import Path

import pytest

from ebbflow.domain.errors import TargetError
from ebbflow.usercode.targets import forget_changed_modules, resolve

FAILING = [
    ("broken_syntax", "def f(:\n", "SyntaxError: invalid syntax (broken_syntax.py, line 1)"),
    (
        "broken_import",
        "import os\nimport not_there_at_all\n",
        "ModuleNotFoundError: No module named 'not_there_at_all' (broken_import.py, line 2)",
    ),
    ("broken_code", "\n\n1 / 0\n", "ZeroDivisionError: division by zero (broken_code.py, line 3)"),
    ("broken_exit", "import sys\nsys.exit(3)\n", "SystemExit: 3 (broken_exit.py, line 2)"),
    (
        "broken_base",
        "class Odd(BaseException): pass\nraise Odd('so')\n",
        "Odd: so (broken_base.py, line 2)",
    ),
]


@pytest.mark.parametrize(("module", "text", "reason"), FAILING)
def test_a_module_that_fails_to_import_says_why_and_where(
    tmp_path: Path, module: str, text: str, reason: str
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    with pytest.raises(TargetError) as caught:
        resolve(f"{module}:f", tmp_path)
    assert str(caught.value) == f"cannot use '{module}:f': importing '{module}' failed: {reason}"


def test_a_module_next_to_the_pipeline_is_found(folder: Path) -> None:
    assert resolve("handlers:enrich", folder).__name__ == "enrich"


def test_a_module_on_the_python_path_is_found_as_well(tmp_path: Path) -> None:
    assert resolve("os.path:join", tmp_path) is __import__("os").path.join


def test_an_attribute_may_be_inside_a_class(folder: Path) -> None:
    assert resolve("handlers:Store.__call__", folder).__name__ == "__call__"


def test_a_package_next_to_the_pipeline_is_found(tmp_path: Path) -> None:
    (tmp_path / "depot").mkdir()
    (tmp_path / "depot" / "orders.py").write_text("def enrich(datum): ...\n")
    assert resolve("depot.orders:enrich", tmp_path).__name__ == "enrich"


def test_two_pipelines_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_name.py").write_text(f"def where(): return {name!r}\n")
    found = [resolve("same_name:where", tmp_path / name)() for name in ("a", "b", "a")]
    assert found == ["a", "b", "a"]


@pytest.mark.parametrize("name", ["json", "time"])
def test_a_module_cannot_have_the_name_of_one_that_is_in_use(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("def enrich(datum): ...\n")
    with pytest.raises(TargetError) as caught:
        resolve(f"{name}:enrich", tmp_path)
    assert str(caught.value) == (
        f"cannot use '{name}:enrich': another module named '{name}' is already in use; "
        "give yours a different name"
    )


def test_a_missing_attribute_of_a_plain_value_is_named(folder: Path) -> None:
    with pytest.raises(TargetError, match=r"'int' has no 'bit_cont'; did you mean 'bit_count'\?"):
        resolve("handlers:LIMIT.bit_cont", folder)


def test_resolving_twice_leaves_one_entry_on_the_python_path(folder: Path) -> None:
    for _ in range(2):
        resolve("handlers:enrich", folder)
    assert sys.path.count(str(folder)) == 1


def test_a_missing_submodule_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(TargetError, match=r"there is no module 'store\.sql' next to the pipeline"):
        resolve("store.sql:write", tmp_path)


def test_workers_can_resolve_targets_without_the_spec_model() -> None:
    code = "import sys, ebbflow.usercode.targets; print('pydantic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_changed_code_is_imported_again_together_with_its_imports(tmp_path: Path) -> None:
    (tmp_path / "changing.py").write_text("from part import VALUE\ndef f(): return VALUE\n")
    (tmp_path / "part.py").write_text("VALUE = 1\n")
    before = resolve("changing:f", tmp_path)
    assert before() == 1
    forget_changed_modules()
    assert resolve("changing:f", tmp_path) is before, "nothing has changed"
    (tmp_path / "part.py").write_text("VALUE = 1 + 1\n")
    forget_changed_modules()
    assert resolve("changing:f", tmp_path)() == 2
