"""The pytest plugin: a failed test shows its simulations, and examples in YAML are tests.

pytest loads it automatically once Ebbflow is installed; ``-p no:ebbflow`` disables it. It imports
nothing until a test simulates or a file of examples is found.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

if TYPE_CHECKING:
    from ebbflow.testing.examples import Example, ExamplesFile

_SUFFIX = ".test.yaml"
_SIMULATION = "ebbflow.testing.simulation"


class ExampleFailed(AssertionError):
    """An example that ended differently than expected. The text lists the differences."""


class ExamplesCollector(pytest.File):
    """A file of examples, ``NAME.test.yaml`` next to ``NAME.yaml``."""

    @override
    def collect(self) -> Iterator[pytest.Item]:
        from ebbflow.testing.examples import read_examples

        file = read_examples(self.path)
        for line, example in file.examples:
            yield ExampleItem.from_parent(
                self, name=example.name, file=file, line=line, example=example
            )


class ExampleItem(pytest.Item):
    """One example, which is a simulation."""

    def __init__(self, *, file: ExamplesFile, line: int, example: Example, **rest: Any) -> None:
        super().__init__(**rest)
        self._file, self._line, self._example = file, line, example

    @override
    def runtest(self) -> None:
        from ebbflow.testing.examples import check_example

        checked = check_example(self._file, self._line, self._example)
        if not checked.passed:
            raise ExampleFailed("\n".join(checked.differences))

    @override
    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ExampleFailed):
            return f"{self.path}:{self._line}: {self.name}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    @override
    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._line - 1, self.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects files of examples that have their spec next to them."""
    if not file_path.name.endswith(_SUFFIX):
        return None
    from ebbflow.testing.examples import find_spec

    if find_spec(file_path) is None:
        return None
    return ExamplesCollector.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forgets the simulations of the previous test."""
    if _SIMULATION in sys.modules:
        sys.modules[_SIMULATION].RECENT.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the results of the last simulations to the report of a failed test."""
    report = yield
    if report.failed and _SIMULATION in sys.modules:
        for simulation in sys.modules[_SIMULATION].RECENT:
            report.sections.append((f"simulation of {simulation.pipeline}", str(simulation)))
    return report
