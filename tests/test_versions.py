"""Pipelines run on every version of PySpark and Python that the guide names, and on any system."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli import doctor
from ebbflow.cli.main import app
from ebbflow.domain import host
from ebbflow.spark import versions
from tests import environments
from tests.environments import ROOT, environment_for_tests

CORE = (
    "tests/domain/test_host.py",
    "tests/cli/test_doctor_command.py",
    "tests/spark/test_run_from_python.py",
    "tests/spark/test_every_outcome.py",
    "tests/spark/test_poison.py",  # a version that words a worker's death differently fails here
    "tests/spark/test_audit_table.py",
    "tests/spark/test_daemon.py",
    "tests/e2e/test_spark_vertices.py",
    "tests/connectors/spark/test_sink.py",
    "tests/connectors/spark/test_source.py",
    "tests/connectors/spark/test_unread.py",
)
"""The core of the suite: everything that depends on Spark or the operating system."""
DATA_SOURCE = ("tests/datasource/test_batch_reads.py", "tests/datasource/test_writes.py")
TESTED = (("3.11", "4.0"), ("3.11", "4.1"), ("3.11", "4.2"), ("3.12", "4.3"), ("3.13", "4.3"))
"""Versions of Python and PySpark that must pass the core; the checkout's own pass everything."""


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("python", "pyspark"), TESTED)
def test_the_core_of_the_suite_passes_on_every_tested_version(python: str, pyspark: str) -> None:
    numbers = tuple(map(int, pyspark.split(".")))
    files = CORE + (DATA_SOURCE if numbers >= versions.DATA_SOURCE_NEEDS else ())
    command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    environment = environment_for_tests(python, pyspark)
    environment.run(*command, cwd=ROOT, timeout=3500, PYTHONPATH=str(ROOT / "src"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_core_of_the_suite_passes_with_the_portable_variant() -> None:
    here = environments.Environment(Path(sys.prefix), "")
    command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE]
    here.run(
        *command, "tests/nats/test_embedded.py", cwd=ROOT, timeout=3500, **{host.PORTABLE: "1"}
    )


def test_the_data_source_names_the_version_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    for module in [name for name in sys.modules if name.startswith("ebbflow.datasource")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"needs PySpark 4\.2 or newer, and 4\.1\.4 is installed"):
        import ebbflow.datasource  # noqa: F401


@pytest.mark.parametrize(
    ("installed", "line"),
    [
        ("3.5.6", "✗ pyspark 3.5.6\n  → Install it with: pip install 'pyspark>=4.0,<4.4'"),
        ("4.0.5", "✓ pyspark 4.0.5 runs pipelines; ebbflow.datasource needs 4.2\n"),
        ("4.2.1", "✓ pyspark 4.2.1\n"),
        ("4.4.0", "✗ pyspark 4.4.0\n"),
    ],
)
def test_the_doctor_accepts_supported_versions_only(
    installed: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = doctor.version
    monkeypatch.setattr(
        doctor, "version", lambda name: installed if name == "pyspark" else others(name)
    )
    result = CliRunner().invoke(app, ["doctor", "--state", str(tmp_path)])
    assert line in result.stdout


def test_the_accepted_versions_are_the_required_ones() -> None:
    required = re.search(r'"pyspark>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    assert required.groups() == (versions.dotted(versions.OLDEST), versions.dotted(versions.BELOW))


def test_the_guide_names_every_version_that_is_tested() -> None:
    guide = (ROOT / "docs/guides/versions.md").read_text("utf-8")
    for python, pyspark in TESTED:
        assert re.search(rf"\| {re.escape(pyspark)}[^|]*\|[^|]*{re.escape(python)}", guide)
