"""Serving pipelines and serving sources: the resulting specs, and what lint reports about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbflow import MonoVertex, Pipeline, SpecError
from ebbflow.builders import NatsStore
from ebbflow.connectors import Log, Ports, Serve
from ebbflow.connectors.serving.replies import ServingSettings
from ebbflow.connectors.serving.spec import ServingFields
from ebbflow.nats.login import Addresses
from ebbflow.runtime.plan import SinksPlan
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.provision import permissions_of
from ebbflow.spec.from_python import ServingOptions
from ebbflow.spec.lint import load, read_specs
from ebbflow.spec.model import PipelineSpec, Spec
from ebbflow.streams.feed import FeedPlan, StorePlan

Lint = Callable[[str], list[str]]

SERVING = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: ServingPipeline
metadata: {name: ask}
spec:
  serving:
    service: true
    msgIDHeaderKey: X-Request-Id
    requestTimeoutSeconds: 30
    auth: {token: {name: web, key: token}}
    ports: {https: 8444}
    cors: ['https://shop.example']
    store: {container: {image: 'store:1', command: [bin/store]}}
    replicas: 2
    nodeSelector: {disk: fast}
  pipeline:
    limits: {readTimeout: 20ms}
    vertices:
    - {name: in, scale: {min: 1}, source: {serving: {}}}
    - {name: out, sink: {serve: {}}}
    edges:
    - {from: in, to: out}
"""

PIPELINE = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: ask}
spec:
  servingStore: {nats: {}}
  vertices:
  - {name: in, source: {serving: {}}}
  - {name: map, udf: {python: 'json:loads'}}
  - {name: out, sink: {serve: {}}}
  edges:
  - {from: in, to: map}
  - {from: map, to: out}
"""

MONOVERTEX = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: ask}
spec:
  servingStore: {nats: {ttl: 10m}}
  source: {serving: {ports: {http: 0}}}
  sink: {serve: {}}
"""


def written(folder: Path, text: str) -> Path:
    (folder / "pipeline.yaml").write_text(text)
    return folder / "pipeline.yaml"


def feed_of(spec: Spec) -> FeedPlan:
    """The plan of the feed of the pipeline's first vertex."""
    source = make_plans(spec, Addresses.of("nats://localhost"), 0, "folder")[0].source
    assert isinstance(source, FeedPlan)
    return source


# --- a ServingPipeline is a Pipeline ------------------------------------------------------------


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setenv("EBBFLOW_SECRET_WEB__TOKEN", "opensesame")
    return load(written(tmp_path, SERVING))


def test_a_serving_pipeline_becomes_a_pipeline_of_the_same_name(ask: Spec) -> None:
    assert isinstance(ask, PipelineSpec)
    assert (ask.kind, ask.name) == ("Pipeline", "ask")
    assert [vertex.name for vertex in ask.vertices] == ["in", "out"]


def test_the_settings_of_the_service_become_those_of_the_source(ask: Spec) -> None:
    settings = feed_of(ask).settings
    assert isinstance(settings, ServingSettings)
    assert settings.id_header == "X-Request-Id"
    assert settings.request_timeout == 30
    assert settings.cors == ("https://shop.example",)
    assert [endpoint.port for endpoint in settings.endpoints] == [8444]
    assert settings.token is not None
    assert settings.token.reveal() == "opensesame"


def test_the_store_of_the_service_becomes_that_of_the_pipeline(ask: Spec) -> None:
    store = feed_of(ask).store
    assert store is not None
    assert (store.bucket, store.ttl, store.search) == ("ebb_ask_answers", 7_200_000, "folder")
    # The state of requests is in the bucket; answers are in the container's store.
    assert store.code is not None
    assert "$KV.ebb_ask_answers.>" in permissions_of(ask).to_config()


def test_answers_are_kept_in_nats_without_a_store(tmp_path: Path) -> None:
    spec = load(written(tmp_path, without_store(SERVING).replace("    auth", "    #")))
    assert feed_of(spec).store == StorePlan("ebb_ask_answers", 7_200_000, None, "folder")


def test_a_store_in_python_has_the_variables_of_its_container(tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text(
        "class Store:\n    def put(self, id, payloads): ...\n    def get(self, id): return []\n"
    )
    (tmp_path / "bindings.yaml").write_text("store: {python: 'answers:Store'}")
    text = SERVING.replace(", command: [bin/store]", ", env: [{name: URL, value: redis}]")
    spec = load(written(tmp_path, text.replace("    auth", "    #")))
    store = feed_of(spec).store
    assert store is not None
    assert (store.code, store.env) == ("answers:Store", (("URL", "redis"),))
    sinks = make_plans(spec, Addresses.of("nats://localhost"), 0, None)[1].role
    assert isinstance(sinks, SinksPlan)
    assert (sinks.store, sinks.store_env) == ("answers:Store", (("URL", "redis"),))


def test_retries_end_quickly_by_default_where_a_caller_waits(
    tmp_path: Path,
) -> None:
    spec = load(
        written(
            tmp_path,
            """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: both}
spec:
  vertices:
    - {name: ask, source: {serving: {ports: {http: 8080}}}}
    - {name: quick, udf: {python: "builtins:print"}}
    - {name: slow, udf: {python: "builtins:print"}, onError: {backoff: {interval: 2s}}}
    - {name: out, sink: {serve: {}}}
    - {name: in, source: {generator: {messages: 10}}}
    - {name: other, udf: {python: "builtins:print"}}
  edges:
    - {from: other, to: out}
    - {from: ask, to: quick}
    - {from: quick, to: slow}
    - {from: slow, to: out}
    - {from: in, to: other}
""",
        )
    )
    plans = make_plans(spec, Addresses.of("nats://localhost"), 0, None)
    policies = {
        plan.vertex: (plan.policy.on_error.interval, plan.policy.on_error.steps) for plan in plans
    }
    quick, normal = (100, 1), (1_000, 5)
    assert policies == {
        "ask": quick,
        "quick": quick,
        "slow": (2_000, 5),
        "out": quick,
        "in": normal,
        "other": normal,
    }


def test_fields_without_effect_are_reported(tmp_path: Path) -> None:
    read = read_specs(written(tmp_path, SERVING))
    (note,) = read.notes
    assert note.removeprefix("without effect here: ").split(", ") == [
        "spec.serving.nodeSelector",
        "spec.serving.service",
        "spec.serving.replicas",
        "spec.pipeline.vertices[].scale",
        "spec.pipeline.limits.readTimeout",
    ]


def without_store(text: str) -> str:
    return text.replace("    store: {container: {image: 'store:1', command: [bin/store]}}\n", "")


# --- problems of a serving pipeline----------------------------------------------------------------

WRONG_SERVING = [
    ("requestTimeoutSeconds: 30", "requestTimeout: 30",
     "8:5: EB101 unknown field 'requestTimeout'; did you mean 'requestTimeoutSeconds'?"),
    ("requestTimeoutSeconds: 30", "requestTimeoutSeconds: 0",
     "8:28: EB104 'requestTimeoutSeconds' must be at least 1, not 0"),
    ("X-Request-Id", "X Request",
     "7:21: EB104 'msgIDHeaderKey': 'X Request' is not a header name"),
    ("https://shop.example", "shop.example",
     "11:12: EB104 'cors[0]': 'shop.example' is not an origin: write https://HOST, with the port "
     "if it has one, or '*'"),
    ("auth: {token: {name: web, key: token}}", "host: 0.0.0.0",
     "6:5: EB104 'serving': anybody who can reach 0.0.0.0 could send; give it auth: {token: {env: "
     "NAME}}"),
    (", command: [bin/store]", "",
     "12:13: EB902 there is no function for image 'store:1' of 'servingStore'; write in "
     "bindings.yaml next to this file (or --bind FILE): store:1: {command: [PROGRAM]}, or {python: "
     "module:attribute}, or {sockets: FOLDER}"),
    ("to: out", "to: ot", "21:22: EB301 there is no vertex 'ot'; did you mean 'out'?"),
    ("name: ask", "name: Ask_1",
     "3:18: EB107 'Ask_1' is not a valid name: use at most 63 lower-case letters, digits and '-', "
     "starting with a letter and not ending with '-'"),
    ("{serving: {}}", "{generator: {}}",
     "17:5: EB601 no source takes requests: give one vertex source: {serving: {}}"),
    ("{serving: {}}", "{serving: {host: localhost}}",
     "18:53: EB601 in a ServingPipeline these fields belong in spec.serving; write serving: {}"),
    ("    limits: ", "    servingStore: {nats: {}}\n    limits: ",
     "16:5: EB601 there is already a store in spec.serving.store"),
    ("{serve: {}}", "{log: {}}",
     "18:44: EB602 no sink answers the requests: one of them must be udsink or serve"),
    ("to: out}", "to: out, onFull: discardLatest}",
     "21:35: EB603 callers of dropped messages would get no answer; use retryUntilSuccess"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "problem"), WRONG_SERVING)
def test_a_problem_of_a_serving_pipeline_is_reported_where_it_is_written(
    problems_of: Lint, right: str, wrong: str, problem: str
) -> None:
    assert right in SERVING
    assert problems_of(SERVING.replace(right, wrong)) == [problem]


# --- serving sources of other kinds -------------------------------------------------------------

STORE = "  servingStore: {nats: {}}\n"
SQL = "{sql: SELECT * FROM messages}"
BATCHES = "works on batches, so callers would get no answer; use code for messages"
TABLE = "  - {name: table, sink: {spark: {format: noop}}}\n  edges:\n  - {from: map, to: table}"
WRONG_PIPELINES = [
    ("{serve: {}}", "{http: {url: 'http://localhost'}}",
     ["7:25: EB602 no sink answers the requests: one of them must be udsink or serve"]),
    ("{python: 'json:loads'}", SQL,
     [f"8:23: EB603 'map' {BATCHES}"]),
    ("  edges:", TABLE, [f"10:26: EB603 'table' {BATCHES}"]),
    ("  edges:", "  - {name: two, source: {serving: {}}}\n  edges:\n  - {from: two, to: map}",
     ["10:26: EB601 there is already a serving source: a pipeline answers at one place"]),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "problems"), WRONG_PIPELINES)
def test_a_pipeline_that_would_leave_callers_without_an_answer_is_rejected(
    problems_of: Lint, right: str, wrong: str, problems: list[str]
) -> None:
    assert right in PIPELINE
    assert problems_of(PIPELINE.replace(right, wrong)) == problems


def test_serving_rules_do_not_apply_without_a_serving_source(problems_of: Lint) -> None:
    text = PIPELINE.replace("{serving: {}}", "{generator: {}}").replace(STORE, "")
    text = text.replace("{serve: {}}", "{log: {}}").replace(
        "to: out}", "to: out, onFull: discardLatest}"
    )
    assert problems_of(text.replace("{python: 'json:loads'}", SQL)) == []


@pytest.mark.parametrize("sink", ["{serve: {}}", "{udsink: {python: 'json:loads'}}"])
def test_answers_of_a_serving_source_are_kept_in_nats_by_default(tmp_path: Path, sink: str) -> None:
    spec = load(written(tmp_path, PIPELINE.replace(STORE, "").replace("{serve: {}}", sink)))
    assert feed_of(spec).store == StorePlan(f"ebb_{spec.name}_answers", 7_200_000, None, "folder")
    plans = make_plans(spec, Addresses.of("nats://localhost"), 1_000_000, None)
    assert [plan.role.serves for plan in plans if isinstance(plan.role, SinksPlan)] == [True]


def test_a_monovertex_can_serve(problems_of: Lint, tmp_path: Path) -> None:
    spec = load(written(tmp_path, MONOVERTEX))
    assert feed_of(spec).store == StorePlan("ebb_ask_answers", 600_000, None, "folder")
    assert problems_of(MONOVERTEX.replace("sink: {serve: {}}", "sink: {log: {}}")) == [
        "6:12: EB602 no sink answers the requests: one of them must be udsink or serve"
    ]


# --- the builders -------------------------------------------------------------------------------


BUILT: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Pipeline("ask").serve("in").map("map", "json:loads").sink("out", Serve()),
        PIPELINE.replace(STORE, ""),
    ),
    (
        lambda: (
            MonoVertex("ask", serving_store=NatsStore(ttl="10m"))
            .serve(ports=Ports(http=0))
            .sink(Serve())
        ),
        MONOVERTEX,
    ),
]


@pytest.mark.parametrize(("build", "text"), BUILT, ids=["pipeline", "monovertex"])
def test_the_builders_produce_the_same_spec_as_yaml(
    build: Callable[[], Any], text: str, tmp_path: Path
) -> None:
    assert build().spec == load(written(tmp_path, text))


def test_the_options_that_editors_complete_are_the_fields_of_the_section() -> None:
    assert ServingOptions.__annotations__.keys() == ServingFields.model_fields.keys()


def test_a_problem_of_a_builder_names_the_vertex() -> None:
    with pytest.raises(SpecError) as raised:
        _ = Pipeline("ask").serve("in", cors=["shop"], partitions=2).sink("out", Log()).spec
    assert [str(problem) for problem in raised.value.problems] == [
        "pipeline ask, vertex in: EB104 'cors[0]': 'shop' is not an origin: write https://HOST, "
        "with the port if it has one, or '*'",
    ]


def test_a_misspelt_option_is_rejected_at_the_call() -> None:
    with pytest.raises(TypeError, match=r"Pipeline.serve\(\) has no option 'port'; did you mean"):
        Pipeline("ask").serve("in", port=8080)  # type: ignore[call-arg]
