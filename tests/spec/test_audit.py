"""The ``audit`` section: its valid fields, and where lint points when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from ebbflow import MonoVertex, Pipeline, SpecError
from ebbflow.builders import Audit
from ebbflow.connectors import Generator, Log, SecretRef
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.provision import permissions_of
from ebbflow.spec.lint import load

BODY = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  audit: AUDIT
  vertices:
    - {name: in, source: {generator: {messages: 1}}}
    - {name: out, sink: {blackhole: {}}}
  edges: [{from: in, to: out}]
"""


def problems(folder: Path, audit: str) -> list[str]:
    file = folder / "p.yaml"
    file.write_text(dedent(BODY).replace("AUDIT", audit))
    try:
        load(file)
    except SpecError as error:
        return [str(problem).removeprefix(f"{file}:") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        ("{options: {path: table}}", []),
        ("{format: jdbc, options: {url: 'jdbc:x', dbtable: t}}", []),
        ("{}", ["5:3: EB701 the audit table has no place: give options: {path: FOLDER}"]),
        (
            "{format: csv}",
            ["5:3: EB701 the audit table has no place: give options: {path: FOLDER}"],
        ),
        (
            "{options: {path: t, maxRecordsPerFile: 5}}",
            [
                "5:30: EB702 'maxRecordsPerFile' has no place here: "
                "each batch of audit rows is one file"
            ],
        ),
        ("{options: {path: t}, retention: 720h, interval: 1m}", []),
        ("{options: {path: t}, retention: 0s}", ["5:42: EB105"]),
        (
            "{format: jdbc, options: {url: 'jdbc:x', dbtable: t}, retention: 720h}",
            ["5:63: EB703 rows of a table of the format 'jdbc' are not deleted"],
        ),
        ("{path: t}", ["5:11: EB101"]),
        ("{format: jdbc, options: {password: x}}", ["5:34: EB109"]),
        ("table", ["5:10: EB103"]),
    ],
)
def test_lint_points_at_the_problem(tmp_path: Path, audit: str, expected: list[str]):
    found = problems(tmp_path, audit)
    assert len(found) == len(expected), found
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning)


def test_pipelines_in_python_can_have_an_audit_table():
    audit = Audit(format="json", options={"path": "table"})
    pipeline = Pipeline("p", audit=audit).source("in", Generator()).sink("out", Log()).spec
    mono = MonoVertex("m", audit=audit).source(Generator()).sink(Log()).spec
    for spec in (pipeline, mono):
        assert spec.audit is not None
        assert spec.audit.format == "json"
    with pytest.raises(SpecError, match="EB701"):
        Pipeline("p", audit=Audit()).source("in", Generator()).sink("out", Log()).spec  # noqa: B018


def test_the_plan_names_the_table_with_an_absolute_path_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "hidden")
    audit = Audit(options={"path": "table"}, secret_options={"key": SecretRef(env="SECRET")})
    spec = Pipeline("p", audit=audit).source("in", Generator()).sink("out", Log()).spec
    plans = make_plans(spec, Addresses(("nats://127.0.0.1:1",)), 10**6, None)
    assert {plan.run.audit for plan in plans} == {plans[0].run.audit}
    table = json.loads(plans[0].run.audit or "")
    assert table["format"] == "parquet"
    assert table["options"] == {"path": str(tmp_path / "table")}
    assert "hidden" not in (plans[0].run.audit or "")
    assert "SECRET" in (plans[0].run.audit or "")


def test_only_a_pipeline_with_an_audit_table_has_the_permissions_for_it():
    plain = Pipeline("p").source("in", Generator()).sink("out", Log()).spec
    audited = Pipeline("p", audit=Audit(options={"path": "t"}))
    kept = audited.source("in", Generator()).sink("out", Log()).spec
    subject = "ebb.p.audit.in.0"
    assert subject not in str(permissions_of(plain).publish)
    assert subject in str(permissions_of(kept).publish)
    assert "$KV.ebb_p_positions.audit" in str(permissions_of(kept).publish)
    assert "$JS.API.STREAM.PURGE.ebb_p_audit" in str(permissions_of(kept).publish)
