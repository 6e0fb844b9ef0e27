from pathlib import Path

import typer
from typer.testing import CliRunner

from ebbflow.cli import main
from ebbflow.cli.lint import lint

GOOD = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {generator: {}}}
  - {name: out, sink: {log: {}}}
  edges:
  - {from: in, to: out}
"""

app = typer.Typer()
app.command()(lint)


def test_clean_files_are_counted(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    one, two = CliRunner().invoke(app, files[:1]), CliRunner().invoke(app, files)
    assert (one.exit_code, one.stdout) == (0, "1 file ok\n")
    assert (two.exit_code, two.stdout) == (0, "2 files ok\n")


def test_problems_are_printed_one_a_line_and_the_exit_code_is_1(tmp_path: Path) -> None:
    bad, missing = tmp_path / "bad.yaml", tmp_path / "missing.yaml"
    bad.write_text(GOOD.replace("to: out", "to: ot"))
    result = CliRunner().invoke(app, [str(bad), str(missing)])
    assert result.exit_code == 1
    assert result.stdout == (
        f"{bad}:9:20: EB301 there is no vertex 'ot'; did you mean 'out'?\n"
        f"{missing}:1:1: EB001 cannot be read: No such file or directory\n"
    )


def test_an_interrupt_while_user_code_is_imported_says_where(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(GOOD.replace("log: {}", "udsink: {python: 'interrupted:store'}"))
    (tmp_path / "interrupted.py").write_text("import os\nraise KeyboardInterrupt\n")
    result = CliRunner().invoke(main.app, ["lint", str(file)])
    assert result.exit_code == 130
    assert result.stderr == (
        "ebbflow: interrupted while 'interrupted' was imported (interrupted.py, line 2)\n"
    )


def test_what_has_no_effect_is_named_once_on_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(
        GOOD.replace("name: in,", "name: in, scale: {}, ").replace(
            "name: out,", "name: out, scale: {},"
        )
    )
    result = CliRunner().invoke(app, [str(file)])
    assert (result.exit_code, result.stdout) == (0, "1 file ok\n")
    assert result.stderr == f"{file}: without effect here: spec.vertices[].scale\n"
