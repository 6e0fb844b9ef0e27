"""The public names: listed in one place, existing, typed, and cheap to import."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest

import ebbflow
from ebbflow.runtime.run_setup import RunOptionNames, RunOptions

MODULES = (
    "ebbflow",
    "ebbflow.builders",
    "ebbflow.client",
    "ebbflow.datasource",
    "ebbflow.deadletters",
    "ebbflow.domain.errors",
    "ebbflow.operations",
    "ebbflow.publishing",
    "ebbflow.status",
)


def listed() -> dict[str, set[str]]:
    """The names that the docstring of the package lists, by module."""
    names: dict[str, set[str]] = {}
    module = ""
    listing = (ebbflow.__doc__ or "").partition("lists it:\n\n")[2].partition("\n\n")[0]
    for line in listing.splitlines():
        module = line[4:27].strip() or module
        names.setdefault(module, set()).update(line[41:].split())
    return names


@pytest.mark.parametrize("module", MODULES)
def test_the_docstring_of_the_package_lists_what_a_module_exports(module: str) -> None:
    exported = {name for name in import_module(module).__all__ if not name.startswith("__")}
    assert listed()[module] == exported


@pytest.mark.parametrize("module", [*MODULES, "ebbflow.testing"])
def test_every_exported_name_exists(module: str) -> None:
    exporting = import_module(module)
    assert [name for name in exporting.__all__ if not hasattr(exporting, name)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ebbflow' has no attribute 'Windows'"):
        _ = ebbflow.Windows


def test_a_misspelt_name_is_an_error_that_suggests_the_nearest_one() -> None:
    with pytest.raises(ImportError, match="ebbflow has no Datm; did you mean 'Datum'"):
        exec("from ebbflow import Datm")
    assert not hasattr(ebbflow, "__wrapped__")
    assert not hasattr(ebbflow, "something_else_entirely")


def test_importing_a_removed_name_says_what_to_write_instead() -> None:
    with pytest.raises(ImportError, match="has no RowResponse any more; write Response"):
        from ebbflow import RowResponse  # noqa: F401


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("Audit", "ebbflow.builders"),
        ("LetterFilter", "ebbflow.deadletters"),
        ("CallTimeout", "ebbflow.domain.errors"),
        ("answers", "ebbflow.operations"),
        ("PipelineStatus", "ebbflow.status"),
    ],
)
def test_importing_a_moved_name_gives_the_line_that_imports_it_now(name: str, module: str) -> None:
    line = f"from {module} import {name}"
    with pytest.raises(ImportError, match=f"ebbflow has no {name} any more; write: {line}$"):
        exec(f"from ebbflow import {name}")
    exec(line)


def test_the_package_exports_at_most_25_names() -> None:
    assert len(ebbflow.__all__) <= 25


def test_every_option_of_a_run_can_be_given_by_name() -> None:
    assert list(RunOptionNames.__annotations__) == [field.name for field in fields(RunOptions)]


def test_the_options_of_a_run_are_converted_once() -> None:
    options = RunOptions.of({"timeout": "1m30s", "state": "here", "search": "there"})
    assert (options.timeout, str(options.state), str(options.search)) == (90.0, "here", "there")
    assert RunOptions.of({}) == RunOptions()


def test_a_run_takes_either_quiet_or_a_watcher() -> None:
    watcher: Any = object()
    with pytest.raises(TypeError, match="quiet=False or a watcher, not both"):
        ebbflow.Pipeline("p").run(quiet=False, watcher=watcher)
