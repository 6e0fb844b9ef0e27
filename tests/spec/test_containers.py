"""Containers in a spec: which fields are rejected where, and the function that results."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbflow.connectors.user_code import CodeSection
from ebbflow.domain.code import expand_all
from ebbflow.domain.errors import SetupError
from ebbflow.spec.bindings import code_places
from ebbflow.spec.lint import load, read_specs
from ebbflow.spec.model import PipelineSpec

Lint = Callable[[str], list[str]]

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {generator: {}}}
  - name: enrich
    udf:
      container:
CONTAINER
  - {name: out, sink: {blackhole: {}}}
  edges: [{from: in, to: enrich}, {from: enrich, to: out}]
"""


def with_container(*lines: str) -> str:
    return SPEC.replace("CONTAINER", "\n".join(f"        {line}" for line in lines))


def enrich_of(folder: Path, *lines: str, secrets: Path | None = None) -> CodeSection:
    file = folder / "pipeline.yaml"
    file.write_text(with_container(*lines))
    spec = load(file, secrets=secrets)
    assert isinstance(spec, PipelineSpec)
    udf = spec.vertex("enrich").udf
    assert udf is not None
    return udf


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["comand: [a]"], "10:9: EB101 unknown field 'comand'; did you mean 'command'?"),
        (["command: run"], "10:18: EB103 'command' must be a list, not 'run'"),
        (["command: [run, 5]"], "10:24: EB103 'command[1]' must be text, not 5; put it in quotes"),
        (
            ["command: [a]", "env: [{name: LEVEL, value: 5}]"],
            "11:36: EB103 'value' must be text, not 5; put it in quotes",
        ),
        (
            ["command: [a]", "env: [{name: 'A B', value: ''}]"],
            "11:22: EB104 'name': 'A B' is not the name of a variable: use letters, digits, "
            "'_', '-' and '.'",
        ),
        (
            ["command: [a]", "env: [{name: A, valueFrom: {}}]"],
            "11:36: EB104 'valueFrom': write exactly one of secretKeyRef, configMapKeyRef and "
            "fieldRef",
        ),
        (
            ["command: [a]", "env: [{name: A, valueFrom: {resourceFieldRef: {}}}]"],
            "11:36: EB104 'valueFrom': resources and files of a pod are not known here; write a "
            "value: instead",
        ),
        (
            ["command: [a]", "env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"],
            "11:59: EB104 'fieldPath': 'status.podIP' of a pod is not known here; the "
            "known fields are metadata.name, metadata.namespace, "
            "metadata.labels['numaflow.numaproj.io/pipeline-name'], "
            "metadata.labels['numaflow.numaproj.io/vertex-name']; write a value: instead",
        ),
        (
            ["command: [a]", "resources: {limits: {cpu: much}}"],
            "11:35: EB104 'cpu': 'much' is not an amount; write for example 500m, 2 or 1Gi",
        ),
        (["args: [a]"], "9:7: EB902 the container of 'enrich' has no image and no command: write "
         "one of them"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistake_in_a_container_is_reported_where_it_is(
    problems_of: Lint, lines: list[str], expected: str
) -> None:
    assert problems_of(with_container(*lines)) == [expected]


def test_a_command_is_started_with_its_arguments_in_the_folder_of_the_file(folder: Path) -> None:
    plan = enrich_of(
        folder,
        "image: org/enrich:v1",
        "command: [./enrich, --fast]",
        "args: [-v, $(LEVEL)]",
        "env: [{name: LEVEL, value: high}]",
    ).plan_function()
    assert plan.container == "udf"
    assert plan.name == "org/enrich:v1"
    assert plan.command == ("./enrich", "--fast")
    assert plan.args == ("-v", "$(LEVEL)")
    assert plan.cwd == str(folder)
    assert plan.env == (("LEVEL", "high"),)
    assert "high" not in repr(plan)


def test_a_working_directory_is_relative_to_the_folder_of_the_file(folder: Path) -> None:
    plan = enrich_of(folder, "command: [./a]", "workingDir: bin").plan_function()
    assert plan.cwd == str(folder / "bin")
    assert plan.name == "./a"


def test_a_running_function_is_identified_by_its_sockets_folder(folder: Path) -> None:
    plan = enrich_of(folder, "sockets: run/enrich").plan_function()
    assert (plan.folder, plan.command) == (str(folder / "run/enrich"), None)


def test_environment_variables_are_collected_from_all_their_sources(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = folder / "secrets"
    (secrets / "login").mkdir(parents=True)
    (secrets / "login" / "password").write_text("to$(LEVEL)p\n")
    (secrets / "login" / "user").write_text("me")
    section = enrich_of(
        folder,
        "command: [a]",
        "resources: {limits: {cpu: 1500m, memory: 1Gi}, requests: {cpu: 0.2, memory: 64M}}",
        "envFrom: [{prefix: LOGIN_, secretRef: {name: login}},",
        "          {configMapRef: {name: nobody, optional: true}}]",
        "env:",
        "- {name: LEVEL, value: high}",
        "- {name: PASSWORD, valueFrom: {secretKeyRef: {name: login, key: password}}}",
        "- {name: ABSENT, valueFrom: {configMapKeyRef: {name: a, key: b, optional: true}}}",
        "- {name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}",
        "- {name: BOTH, value: $(LEVEL)-$(PASSWORD)}",
        "- {name: EMPTY}",
        secrets=secrets,
    )
    monkeypatch.setenv("NUMAFLOW_POD", "orders-enrich-0")
    assert expand_all(section.plan_function().env, os.environ) == {
        "NUMAFLOW_CPU_LIMIT": "2",
        "NUMAFLOW_MEMORY_LIMIT": str(1024**3),
        "NUMAFLOW_CPU_REQUEST": "1",
        "NUMAFLOW_MEMORY_REQUEST": "64000000",
        "LOGIN_password": "to$(LEVEL)p",
        "LOGIN_user": "me",
        "LEVEL": "high",
        "PASSWORD": "to$(LEVEL)p",
        "WHO": "orders-enrich-0",
        "BOTH": "high-to$(LEVEL)p",
        "EMPTY": "",
    }


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "env: [{name: P, valueFrom: {secretKeyRef: {name: login, key: word}}}]",
            "it must hold the variable P of the container org/a",
        ),
        ("envFrom: [{secretRef: {name: login}}]", "The Secret login is not here; the container "),
    ],
    ids=["key", "whole"],
)
def test_a_missing_secret_is_reported_when_the_run_begins(
    folder: Path, lines: str, expected: str
) -> None:
    section = enrich_of(folder, "image: org/a", "command: [a]", lines)
    with pytest.raises(SetupError, match=expected):
        section.plan_function()


def test_variables_of_a_container_reach_the_python_code_next_to_it(folder: Path) -> None:
    file = folder / "pipeline.yaml"
    text = with_container("image: any", "env: [{name: LEVEL, value: high}]")
    file.write_text(text.replace("    udf:", "    udf:\n      python: handlers:enrich"))
    spec = load(file)
    (place,) = code_places(spec)
    assert place.section.code == "handlers:enrich"
    assert place.section.call_mode == "unary"
    assert place.section.variables == (("LEVEL", "high"),)


def test_every_place_for_code_is_found(folder: Path) -> None:
    file = folder / "mono.yaml"
    file.write_text("""\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: all}
spec:
  source:
    udsource: {container: {command: [source]}}
    transformer: {container: {command: [transformer]}}
  udf: {container: {command: [map]}}
  sink:
    udsink: {container: {command: [sink]}}
    fallback: {udsink: {container: {command: [fallback]}}}
    onSuccess: {udsink: {container: {command: [success]}}}
  servingStore: {container: {command: [store]}}
""")
    read = read_specs(file)
    assert read.problems == ()
    plans = [place.section.plan_function() for place in code_places(read.specs[0])]
    assert {plan.container: plan.command for plan in plans} == {
        "udsource": ("source",),
        "transformer": ("transformer",),
        "udf": ("map",),
        "udsink": ("sink",),
        "fb-udsink": ("fallback",),
        "ons-udsink": ("success",),
        "udstore": ("store",),
    }
