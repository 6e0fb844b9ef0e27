"""Documents next to a pipeline in its file: Secrets, ConfigMaps, a buffer service, and others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ebbflow.domain.errors import SetupError, SpecError
from ebbflow.spec.lint import load, read_specs

Lint = Callable[[str], list[str]]

PIPELINE = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: web}
spec:
  vertices:
  - {name: in, source: {http: {auth: {token: {name: web, key: token}}}}}
  - {name: out, sink: {log: {}}}
  edges:
  - {from: in, to: out}
"""
SECRET = """\
---
apiVersion: v1
kind: Secret
metadata: {name: web, namespace: default}
type: Opaque
data: {token: aHVudGVyMg==}
stringData: {other: in the clear}
"""
SERVICE = """\
---
apiVersion: numaflow.numaproj.io/v1alpha1
kind: InterStepBufferService
metadata: {name: default}
spec:
  jetstream:
    version: latest
    replicas: 3
    persistence: {volumeSize: 3Gi}
"""


def token_of(file: Path) -> str:
    """The token of the http source, as a run reads it."""
    source = load(file).vertex("in").source.section
    return source.settings("the http source in").token.reveal()


@pytest.mark.parametrize("text", [PIPELINE + SECRET, SECRET + "---\n" + PIPELINE])
def test_a_secret_in_the_pipelines_file_is_read_wherever_it_is_written(
    folder: Path, text: str
) -> None:
    (folder / "web.yaml").write_text(text)
    assert token_of(folder / "web.yaml") == "hunter2"


def test_a_missing_secret_is_reported_when_a_run_is_planned_and_not_by_lint(
    folder: Path, problems_of: Lint
) -> None:
    assert problems_of(PIPELINE) == []
    with pytest.raises(SetupError, match="The Secret web with the key token is not here"):
        token_of(folder / "pipeline.yaml")


@pytest.mark.guarantee("secrets-are-in-no-text")
def test_problems_of_a_secret_are_reported_without_its_values(problems_of: Lint) -> None:
    secret = """\
apiVersion: v1
kind: Secret
metadata: {name: web}
data: {token: hunter2!, number: 12345678, more: {a: hunter2}}
stringData: {pin: 12345678}
dat: {a: b}
"""
    problems = problems_of(secret)
    assert problems == [
        "4:15: EB106 'token': not base64 of a text",
        "4:33: EB103 'number': must be text in base64",
        "4:49: EB103 'more': must be text in base64",
        "5:19: EB103 'pin': must be text; put it in quotes",
        "6:1: EB101 unknown field 'dat'; did you mean 'data'?",
    ]
    assert not any("hunter2" in problem or "12345678" in problem for problem in problems)


def test_a_config_map_is_read(problems_of: Lint) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rates}\ndata: {eur: '1.1'}\n"
    assert problems_of(text) == []


@pytest.mark.parametrize(
    ("written", "instead", "problem"),
    [
        ("", "", None),
        ("replicas: 3", "tls: true\n    startArgs: [-D]\n    settings: 'max_payload: 1'", None),
        (
            "persistence",
            "persistance",
            "18:5: EB101 unknown field 'persistance'; did you mean 'persistence'?",
        ),
        (
            "3Gi",
            "3Gi // as before",
            "18:31: EB104 'volumeSize': '3Gi // as before' is not an amount; "
            "write for example 500m, 2 or 1Gi",
        ),
        (
            "replicas: 3",
            "replicas: 2",
            "17:15: EB104 'replicas': must be 1 or at least 3, not 2: "
            "two servers cannot outvote each other",
        ),
        ("version: latest\n    ", "", "16:5: EB102 'version' is missing"),
    ],
    ids=["good", "all fields", "spelling", "amount", "servers", "version"],
)
def test_a_buffer_service_is_checked_as_numaflow_checks_it(
    problems_of: Lint, written: str, instead: str, problem: str | None
) -> None:
    service = SERVICE.replace(written, instead) if written else SERVICE
    assert problems_of(PIPELINE + service) == ([problem] if problem else [])


def test_fields_without_effect_are_reported_once_for_all_vertices(folder: Path) -> None:
    pods = "limits: {readTimeout: 2s}, scale: {min: 1}, containerTemplate: {a: b}"
    text = PIPELINE.replace("name: in,", f"name: in, {pods},")
    text = text.replace("name: out,", f"name: out, {pods},")
    text = text.replace("http: {", "http: {service: true, ")
    (folder / "web.yaml").write_text(text + SERVICE)
    assert read_specs(folder / "web.yaml").notes == (
        "without effect here: spec.vertices[].containerTemplate, spec.vertices[].scale, "
        "spec.vertices[].source.http.service, spec.vertices[].limits.readTimeout, "
        "InterStepBufferService default",
    )


def test_fields_without_effect_in_a_container_or_a_monovertex_are_reported(folder: Path) -> None:
    text = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: web, labels: {a: b}}
spec:
  streaming: true
  source: {generator: {}}
  sink:
    udsink: {python: 'handlers:Store', container: {image: 'a:1', imagePullPolicy: Always}}
"""
    (folder / "web.yaml").write_text(text)
    read = read_specs(folder / "web.yaml")
    assert (read.problems, read.notes) == (
        (),
        ("without effect here: spec.sink.udsink.container.imagePullPolicy, spec.streaming",),
    )


def test_a_call_timeout_that_cannot_end_a_dataframe_function_is_noted(folder: Path) -> None:
    (folder / "shop.py").write_text("def priced(frame):\n    return frame\n")
    text = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: shop}
spec:
  limits: {callTimeout: 3s}
  vertices:
  - {name: in, source: {generator: {}}}
  - {name: price, udf: {dataframe: 'shop:priced'}}
  - {name: sum, udf: {sql: 'select * from messages'}}
  - {name: out, sink: {log: {}}}
  edges: [{from: in, to: price}, {from: price, to: sum}, {from: sum, to: out}]
"""
    note = "limits.callTimeout ends Spark jobs, but not the DataFrame function itself: vertex price"
    (folder / "shop.yaml").write_text(text)
    assert read_specs(folder / "shop.yaml").notes == (note,)
    (folder / "shop.yaml").write_text(text.replace("  limits: {callTimeout: 3s}\n", ""))
    assert read_specs(folder / "shop.yaml").notes == ()


def test_documents_of_other_systems_next_to_a_pipeline_are_ignored(folder: Path) -> None:
    other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n"
    (folder / "web.yaml").write_text(other + PIPELINE)
    read = read_specs(folder / "web.yaml")
    assert (read.problems, read.notes) == ((), ("not read: Deployment in line 1",))


def test_a_misspelt_numaflow_kind_is_not_taken_for_another_systems_document(
    problems_of: Lint,
) -> None:
    wrong = "apiVersion: numaflow.numaproj.io/v1\nkind: Pipelin\nmetadata: {name: x}\n---\n"
    assert problems_of(wrong + PIPELINE) == [
        "1:13: EB005 unknown apiVersion 'numaflow.numaproj.io/v1'; expected "
        "numaflow.numaproj.io/v1alpha1",
        "2:7: EB005 unknown kind 'Pipelin'; expected Pipeline, MonoVertex or ServingPipeline",
    ]


def test_a_file_without_a_pipeline_passes_lint_but_cannot_be_run(
    folder: Path, problems_of: Lint
) -> None:
    assert problems_of(SERVICE) == []
    with pytest.raises(SpecError, match="1:1: EB004 there is no pipeline in this file"):
        load(folder / "pipeline.yaml")
