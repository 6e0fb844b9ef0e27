"""Lint of SQL, DataFrame functions, Spark sources and Spark sinks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbflow import MonoVertex, Pipeline
from ebbflow.connectors import Log, Spark
from ebbflow.domain.errors import SpecError

Lint = Callable[[str], list[str]]

GOOD = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {spark: {format: json, options: {path: here, rows: 3, deep: true}}}}
  - {name: work, udf: {sql: SELECT id FROM messages}}
  - {name: out, sink: {spark: {format: csv, columns: {id: id}, partitionBy: [id]}}}
  edges:
  - {from: in, to: work}
  - {from: work, to: out}
"""


def test_valid_spark_vertices_have_no_problems(problems_of: Lint):
    assert problems_of(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sql: SELECT id FROM messages", "sql: ' '", "7:29: EB104 'sql': must not be empty"),
        (
            "udf: {sql",
            "udf: {python: 'handlers:enrich', sql",
            "7:23: EB207 'udf' can be only one of python and sql",
        ),
        (
            "sql: SELECT id FROM messages",
            "dataframe: 'handlers:enrih'",
            "7:35: EB402 cannot use 'handlers:enrih': 'handlers' has no 'enrih'; "
            "did you mean 'enrich'?",
        ),
        (
            "messages}",
            "messages, mode: batch}",
            "7:60: EB210 'mode' is for Python code; SQL always gets batches",
        ),
        (
            "messages}",
            "messages, retryStrategy: {}}",
            "7:54: EB210 SQL reports no failures to retry; what it cannot work on is for onError",
        ),
        (
            "name: work,",
            "name: work, ordered: {enabled: true},",
            "7:18: EB210 SQL cannot be ordered; give 'work' ordered: {enabled: false}",
        ),
        (
            "sink: {",
            "sink: {onSuccess: {log: {}}, ",
            "8:24: EB210 a Spark sink passes nothing on to an on-success sink",
        ),
        (
            "sink: {",
            "sink: {fallback: {spark: {format: csv}}, ",
            "8:35: EB210 'fallback' is called for single messages, which Spark cannot write",
        ),
        ("format: csv, ", "", "8:31: EB102 'format' is missing"),
        (
            "format: csv, ",
            "format: csv, mode: overwrite, ",
            "8:51: EB104 'mode' must be 'append', not 'overwrite'",
        ),
        (
            "path: here",
            "path: [here]",
            "6:63: EB103 'path': must be text, a number or true or false, not a list",
        ),
        (
            "path: here",
            "Password: hunter2",
            "6:56: EB109 'options': 'Password' is a secret; name its place in secretOptions: "
            "{Password: {env: NAME}}",
        ),
        (
            "path: here",
            "url: 'jdbc:x:y?password=hunter2'",
            "6:56: EB109 'options': 'url' is a secret; name its place in secretOptions: "
            "{url: {env: NAME}}",
        ),
        (
            "format: json",
            "format: json, trigger: {}",
            "6:56: EB104 'trigger': write exactly one of processingTime and availableNow",
        ),
        (
            "format: json",
            "format: json, stream: false, trigger: {availableNow: true}",
            "6:32: EB104 'spark': a trigger is for streams; leave it or stream out",
        ),
    ],
)
def test_each_mistake_is_reported_where_it_is(problems_of: Lint, old, new, expected):
    assert old in GOOD
    problems = problems_of(GOOD.replace(old, new, 1))
    assert problems == [expected]
    assert "hunter2" not in problems[0]


def test_an_ordered_pipeline_may_contain_unordered_spark_vertices(problems_of: Lint):
    ordered = GOOD.replace("spec:\n", "spec:\n  ordered: {enabled: true}\n")
    assert [problem.partition(" ")[2] for problem in problems_of(ordered)] == [
        "EB210 SQL cannot be ordered; give 'work' ordered: {enabled: false}",
        "EB210 a Spark sink cannot be ordered; give 'out' ordered: {enabled: false}",
    ]
    for name in ("work", "out"):
        ordered = ordered.replace(f"name: {name},", f"name: {name}, ordered: {{enabled: false}},")
    assert problems_of(ordered) == []


def test_a_monovertex_may_have_a_spark_source_but_no_spark_sink():
    mono = MonoVertex("test").source(Spark(format="rate"))
    assert mono.sink(Log()).spec.source.kind == "spark"
    with pytest.raises(SpecError) as refused:
        _ = MonoVertex("test").source(Spark(format="rate")).sink(Spark(format="csv")).spec
    assert "EB210 a MonoVertex cannot have a Spark sink; write a Pipeline" in str(refused.value)


def test_the_builder_produces_the_same_vertices_as_yaml(folder):
    from ebbflow.spec.lint import load

    (folder / "orders.yaml").write_text(GOOD)
    read = load(folder / "orders.yaml")
    options = {"path": "here", "rows": 3, "deep": True}
    built = (
        Pipeline("orders")
        .source("in", Spark(format="json", options=options))
        .map("work", sql="SELECT id FROM messages")
        .sink("out", Spark(format="csv", columns={"id": "id"}, partition_by=["id"]))
    )
    assert built.spec.vertices == read.vertices
    assert built.spec.vertex("in").source.spark.options == {
        "path": "here",
        "rows": "3",
        "deep": "true",
    }
