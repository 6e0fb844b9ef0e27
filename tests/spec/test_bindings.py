"""Bindings: how an image is bound, the resulting function, and problems in a bindings file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.connectors.user_code import CodeSection
from ebbflow.spec.bindings import Binding, Bindings, split_image
from ebbflow.spec.lint import load, read_specs
from ebbflow.spec.model import PipelineSpec

CAT = "quay.io/numaio/numaflow-go/map-cat:stable"

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {generator: {}}}
  - name: enrich
    udf:
      container: {image: "IMAGE", args: [--spec], env: [{name: LEVEL, value: low}]}
  - {name: out, sink: {udsink: {container: {image: "SINK"}}}}
  edges: [{from: in, to: enrich}, {from: enrich, to: out}]
"""


@pytest.fixture
def file(folder: Path) -> Path:
    file = folder / "pipeline.yaml"
    file.write_text(SPEC.replace("IMAGE", "org.io:5000/team/enrich:v1").replace("SINK", "log:1"))
    return file


def enrich_of(file: Path, **options: Path) -> CodeSection:
    spec = load(file, **options)  # type: ignore[arg-type]
    assert isinstance(spec, PipelineSpec)
    udf = spec.vertex("enrich").udf
    assert udf is not None
    return udf


def write(folder: Path, *lines: str, name: str = "bindings.yaml") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("image", "path", "tag"),
    [
        ("cat", "cat", ""),
        ("cat:v1", "cat", "v1"),
        ("host:5000/cat", "host:5000/cat", ""),
        ("host:5000/a/cat:v1", "host:5000/a/cat", "v1"),
        ("a/cat@sha256:ab", "a/cat", "sha256:ab"),
        ("a/cat:v1@sha256:ab", "a/cat", "sha256:ab"),
    ],
)
def test_an_image_name_is_split_into_path_and_tag(image: str, path: str, tag: str) -> None:
    assert split_image(image) == (path, tag)


@pytest.mark.parametrize(
    ("names", "bound"),
    [
        (["map-cat"], "map-cat"),
        (["numaflow-go/map-cat"], "numaflow-go/map-cat"),
        (["quay.io/numaio/numaflow-go/map-cat"], "quay.io/numaio/numaflow-go/map-cat"),
        ([CAT], CAT),
        (["map-cat:stable"], "map-cat:stable"),
        (["map-cat:v1"], None),
        (["cat"], None),
        (["other/map-cat"], None),
        (["numaio/map-cat"], None),
        (["map-cat", "map-cat:stable"], "map-cat:stable"),
        (["map-cat:stable", "numaflow-go/map-cat"], "numaflow-go/map-cat"),
    ],
)
def test_the_most_specific_name_binds_an_image(names: list[str], bound: str | None) -> None:
    assert Bindings("", dict.fromkeys(names, Binding())).find(CAT) == bound


def test_an_image_becomes_a_command_in_the_folder_of_the_bindings(file: Path) -> None:
    elsewhere = file.parent / "local"
    elsewhere.mkdir()
    bindings = write(
        elsewhere,
        "team/enrich:",
        "  command: [bin/enrich, -x]",
        "  env: [{name: LEVEL, value: high}, {name: MORE, value: $(LEVEL)er}]",
        "log: {python: handlers:Store}",
    )
    plan = enrich_of(file, bind=bindings).plan_function()
    assert plan.command == ("bin/enrich", "-x")
    assert plan.args == ("--spec",)
    assert plan.cwd == str(elsewhere)
    assert plan.env == (("LEVEL", "high"), ("MORE", "$(LEVEL)er"))
    assert plan.image == "org.io:5000/team/enrich:v1"


def test_arguments_of_the_binding_replace_those_of_the_spec(file: Path) -> None:
    write(file.parent, "enrich: {command: [a], args: [b], workingDir: c}", "log: {sockets: d}")
    plan = enrich_of(file).plan_function()
    assert (plan.command, plan.args) == (("a",), ("b",))
    assert plan.cwd == str(file.parent / "c")
    spec = load(file)
    assert isinstance(spec, PipelineSpec)
    sink = spec.vertex("out").sink
    assert sink is not None
    assert sink.udsink.plan_function().folder == str(file.parent / "d")  # type: ignore[attr-defined]
    written = sink.section.plan()
    # The batch size that functions are written for.
    assert (written.mode, written.rows) == ("columnar", 500)  # type: ignore[union-attr]


def test_an_image_becomes_python_code_with_the_variables_of_its_container(file: Path) -> None:
    write(file.parent, "enrich: {python: handlers:enrich, mode: batch}", "log: {sockets: /d}")
    section = enrich_of(file)
    assert section.code == "handlers:enrich"
    assert section.call_mode == "batch"
    assert section.variables == (("LEVEL", "low"),)


def test_images_of_numaflows_examples_need_no_binding(file: Path) -> None:
    file.write_text(
        SPEC.replace("IMAGE", CAT).replace("SINK", "quay.io/numaio/numaflow-go/sink-log:stable")
    )
    section = enrich_of(file)
    assert section.code == "ebbflow.numaflow.image_functions:cat"
    assert section.call_mode == "columnar"
    write(file.parent, "map-cat: {python: handlers:enrich}")
    assert enrich_of(file).code == "handlers:enrich"


def problems(file: Path) -> list[str]:
    return [str(problem).removeprefix(f"{file.parent}/") for problem in read_specs(file).problems]


def test_an_image_without_a_binding_is_reported_with_the_line_to_write(file: Path) -> None:
    write(file.parent, "log: {python: handlers:Store}")
    (problem,) = problems(file)
    assert problem == (
        "pipeline.yaml:9:7: EB902 there is no function for image 'org.io:5000/team/enrich:v1' of "
        "'enrich'; write in bindings.yaml next to this file (or --bind FILE): "
        "org.io:5000/team/enrich:v1: {command: [PROGRAM]}, or {python: module:attribute}, "
        "or {sockets: FOLDER}"
    )
    line = problem.partition("FILE): ")[2].partition(", or")[0]
    write(file.parent, "log: {python: handlers:Store}", line)
    assert enrich_of(file).plan_function().command == ("PROGRAM",)


OTHERS = ["enrich: {command: [a]}", "log: {sockets: a}"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["- a"], "1:1: EB103 bindings are a mapping of images, not a list"),
        (
            [*OTHERS, "a: run"],
            "3:4: EB103 write command:, python: or sockets: for 'a', not 'run'",
        ),
        (
            [*OTHERS, "a: {comand: [b]}"],
            "3:5: EB101 unknown field 'comand'; did you mean 'command'?",
        ),
        (
            [*OTHERS, "a: {}"],
            "3:1: EB207 'a' must have exactly one of command, python and sockets; "
            "it has none of them",
        ),
        (
            [*OTHERS, "a:", "  command: [b]", "  sockets: c"],
            "3:1: EB207 'a' must have exactly one of command, python and sockets; "
            "not command and sockets",
        ),
        (
            [*OTHERS, "a: {command: [b], mode: batch}"],
            "3:25: EB104 'mode' is for Python code; a function in its own process says its mode "
            "itself",
        ),
        ([*OTHERS, "a: {python: b}"], "3:13: EB401 'b' is not of the form module:attribute"),
        ([*OTHERS, "a: {python: b:c, mode: fast}"], "3:24: EB104 'mode' must be"),
        ([*OTHERS, "enrich: {sockets: b}"], "3:1: EB003 'enrich' is already written in line 1"),
        ([*OTHERS, "a: {command: [b"], "4:1: EB002"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_mistake_in_bindings_is_reported_where_it_is(
    file: Path, lines: list[str], expected: str
) -> None:
    bindings = write(file.parent, *lines)
    assert problems(file)[0].startswith(f"bindings.yaml:{expected}")
    assert problems(bindings)[0].startswith(f"bindings.yaml:{expected}")


def test_the_code_that_an_image_is_bound_to_is_checked(file: Path) -> None:
    write(
        file.parent,
        "enrich: {python: handlers:enrch}",
        "log: {python: handlers:Store, mode: unary}",
    )
    assert problems(file) == [
        "pipeline.yaml:9:18: EB402 cannot use 'handlers:enrch': 'handlers' has no 'enrch'; "
        "did you mean 'enrich'?",
        "pipeline.yaml:10:44: EB104 the image is bound with mode 'unary', and a sink has one of "
        "batch, columnar, pandas",
    ]


def test_lint_reports_unused_bindings(file: Path) -> None:
    bindings = write(file.parent, *OTHERS, "other: {sockets: a}")
    shown = CliRunner().invoke(app, ["lint", str(file)])
    assert shown.exit_code == 0
    assert f"{bindings}: unused: other\n" in shown.stderr
    second = file.with_name("second.yaml")
    second.write_text(SPEC.replace("IMAGE", "other").replace("SINK", "log"))
    shown = CliRunner().invoke(app, ["lint", str(file), str(second), str(bindings)])
    assert shown.stdout == "3 files ok\n"
    assert "unused" not in shown.stderr


def test_a_named_bindings_file_replaces_the_one_next_to_the_pipeline(file: Path) -> None:
    write(file.parent, *OTHERS)
    mine = write(file.parent, "enrich: {command: [mine]}", "log: {sockets: a}", name="mine.yaml")
    assert enrich_of(file, bind=mine).plan_function().command == ("mine",)
    shown = CliRunner().invoke(app, ["lint", str(file), "--bind", str(mine)])
    assert shown.exit_code == 0
