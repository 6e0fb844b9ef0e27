"""Each case changes one thing in a MonoVertex that lints and says what lint then reports."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbflow.connectors import registry
from ebbflow.domain.durations import Backoff
from ebbflow.spec.kubernetes import MONOVERTEX_NO_EFFECT
from ebbflow.spec.lint import check, load
from ebbflow.spec.model import EffectiveLimits, MonoVertexBody, MonoVertexSpec
from tests.spec.linting import NO_GROUP_BY, NO_RATE_LIMIT

Lint = Callable[[str], list[str]]

GOOD = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: orders}
spec:
  source: {generator: {}}
  udf: {python: "handlers:enrich"}
  sink: {udsink: {python: "handlers:Store"}, fallback: {log: {}}}
"""

FULL = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: orders, labels: {team: checkout}}
spec:
  replicas: 3
  limits: {readBatchSize: 50, readTimeout: 500ms}
  lifecycle: {desiredPhase: Paused}
  scale: {min: 1, max: 3}
  containerTemplate: {resources: {limits: {memory: 500Mi}}}
  daemonTemplate: {replicas: 1}
  volumes: [{name: cache, emptyDir: {}}]
  nodeSelector: {disk: ssd}
  updateStrategy: {type: RollingUpdate}
  streaming: false
  source:
    generator: {messages: 10}
    transformer:
      python: handlers:first_look
      retryStrategy: {backoff: {steps: 2}}
  udf:
    container: {image: "shop/enrich:7"}
    python: handlers:enrich
    mode: batch
  sink:
    udsink: {python: "handlers:Store"}
    fallback: {udsink: {python: "handlers:Store"}}
    onSuccess: {log: {}}
    retryStrategy: {backoff: {interval: 1s, steps: 3}, onFailure: fallback}
  bypass:
    sink: {tags: {operator: not, values: [new]}}
    fallback: {tags: {values: [bad, late]}}
    onSuccess: {tags: {operator: and, values: [done, paid]}}
  servingStore: {nats: {bucket: answers}}
  onError: {backoff: {interval: 2s, steps: 3}}
status: {phase: Running}
"""

SINKS = ", ".join(registry.SINKS)
FIELDS = ", ".join(str(field.alias) for field in MonoVertexBody.model_fields.values())
SINK = next(line for line in GOOD.splitlines(keepends=True) if line.startswith("  sink:"))

WRONG = [
    (
        "orders",
        "Orders",
        "3:18: EB107 'Orders' is not a valid name: use at most 63 lower-case letters, digits and "
        "'-', starting with a letter and not ending with '-'",
    ),
    ("  source: {generator: {}}\n", "", "5:3: EB203 the MonoVertex has no source"),
    (SINK, "", "5:3: EB204 the MonoVertex has no sink"),
    ("{generator: {}}", "5", "5:11: EB103 'source' must be a mapping, not a single value"),
    (
        "{generator: {}}",
        "{}",
        f"5:11: EB207 'source' needs one of {', '.join(registry.SOURCES)}",
    ),
    ("fallback: {log: {}}", "fallback: {}", f"7:56: EB207 'fallback' needs one of {SINKS}"),
    (
        "spec:\n",
        "spec:\n  vertices: []\n",
        f"5:3: EB101 unknown field 'vertices'; valid here: {FIELDS}",
    ),
    (
        "udf: {",
        "udf: {groupBy: {}, ",
        f"6:9: EB901 groupBy {NO_GROUP_BY}",
    ),
    (
        "udf: {",
        "udf: {retryStrategy: {onFailure: fallback}, ",
        "6:36: EB502 onFailure is fallback, but a map has no fallback sink: use retry or drop",
    ),
    (
        "{generator: {}}",
        "{generator: {}, transformer: {python: 'handlers:enrich', "
        "retryStrategy: {onFailure: fallback}}}",
        "5:95: EB502 onFailure is fallback, but a transformer has no fallback sink: "
        "use retry or drop",
    ),
    (
        "handlers:enrich",
        "handlers:enrch",
        "6:17: EB402 cannot use 'handlers:enrch': "
        "'handlers' has no 'enrch'; did you mean 'enrich'?",
    ),
    (
        'udf: {python: "handlers:enrich"}',
        "udf: {container: {image: a}}",
        "6:9: EB902 there is no function for image 'a' of 'orders'; write in bindings.yaml next to "
        "this file (or --bind FILE): a: {command: [PROGRAM]}, or {python: module:attribute}, "
        "or {sockets: FOLDER}",
    ),
    (
        "{generator: {}}",
        "{udsource: {python: 'handlers:Reader'}}",
        "5:31: EB402 cannot use 'handlers:Reader': it has no method 'ack'",
    ),
]

SETTINGS = [
    ("streaming: false", []),
    ("streaming: true", []),
    ("replicas: -1", ["5:13: EB104 'replicas' must be at least 0, not -1"]),
    ("partitions: -1", ["5:15: EB104 'partitions' must be at least 0, not -1"]),
    (
        "limits: {rateLimit: {max: 1}}",
        [f"5:12: EB901 rateLimit {NO_RATE_LIMIT}"],
    ),
    (
        "limits: {bufferMaxLength: 5}",
        [
            "5:12: EB101 unknown field 'bufferMaxLength'; "
            "valid here: readBatchSize, readTimeout, concurrency, callTimeout, rateLimit"
        ],
    ),
    ("lifecycle: {pause: 5}", ["5:15: EB101 unknown field 'pause'; valid here: desiredPhase"]),
    (
        "onError: {backoff: {interval: 5s, cap: 1s}}",
        ["5:42: EB501 'cap' (1000 ms) is below 'interval' (5000 ms)"],
    ),
    ("servingStore: {}", ["5:17: EB207 'servingStore' needs one of nats, python, container"]),
    ("bypass: {}", []),
    ("bypass: {sink: {tags: {values: [a]}}, fallback: {tags: {values: [b]}}}", []),
    (
        "bypass: {sink: {}}",
        ["5:18: EB303 the condition needs values: the tags to look for with 'or'"],
    ),
    (
        "bypass: {fallback: {tags: {operator: not}}}",
        ["5:29: EB303 the condition needs values: the tags to look for with 'not'"],
    ),
    (
        "bypass: {onSuccess: {}}",
        [
            "5:12: EB209 bypass to 'onSuccess', but the sink has no 'onSuccess'",
            "5:23: EB303 the condition needs values: the tags to look for with 'or'",
        ],
    ),
    (
        "bypass: {onSuccess: {tags: {values: [a]}}}",
        ["5:12: EB209 bypass to 'onSuccess', but the sink has no 'onSuccess'"],
    ),
    (
        "bypass: {primary: {tags: {values: [a]}}}",
        ["5:12: EB101 unknown field 'primary'; valid here: sink, fallback, onSuccess"],
    ),
]


def changed(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


@pytest.fixture
def full(folder: Path) -> MonoVertexSpec:
    (folder / "orders.yaml").write_text(FULL)
    loaded = load(folder / "orders.yaml")
    assert isinstance(loaded, MonoVertexSpec)
    return loaded


def made(**body: Any) -> MonoVertexSpec:
    return MonoVertexSpec.model_validate({"metadata": {"name": "a"}, "spec": body})


@pytest.mark.parametrize("text", [GOOD, FULL])
def test_a_good_monovertex_has_no_problems(problems_of: Lint, text: str) -> None:
    assert problems_of(text) == []


@pytest.mark.parametrize(("old", "new", "expected"), WRONG)
def test_each_mistake_is_reported_where_it_is(
    problems_of: Lint, old: str, new: str, expected: str
) -> None:
    (found,) = problems_of(changed(old, new))
    assert found == expected


@pytest.mark.parametrize(("setting", "expected"), SETTINGS)
def test_settings_are_checked(problems_of: Lint, setting: str, expected: list[str]) -> None:
    assert problems_of(changed("spec:\n", f"spec:\n  {setting}\n")) == expected


def test_a_bypass_to_a_missing_fallback_is_rejected(problems_of: Lint) -> None:
    text = changed(", fallback: {log: {}}", "") + "  bypass: {fallback: {tags: {values: [a]}}}\n"
    assert problems_of(text) == ["8:12: EB209 bypass to 'fallback', but the sink has no 'fallback'"]


def test_a_missing_sink_is_reported_once(problems_of: Lint) -> None:
    text = changed(SINK, "  bypass: {fallback: {tags: {values: [a]}}}\n")
    assert problems_of(text) == ["5:3: EB204 the MonoVertex has no sink"]


def test_a_document_without_a_kind_is_recognised_by_its_fields(problems_of: Lint) -> None:
    assert problems_of(changed("kind: MonoVertex\n", "")) == [
        "1:1: EB102 'kind' is missing; write kind: Pipeline, MonoVertex or ServingPipeline"
    ]


def test_the_fields_without_effect_are_listed() -> None:
    assert {"daemonTemplate", "scale", "volumes"} <= set(MONOVERTEX_NO_EFFECT["spec"])


def test_the_parts_of_a_monovertex_are_read(full: MonoVertexSpec) -> None:
    assert (full.name, full.source.kind, full.sink.kind) == ("orders", "generator", "udsink")
    assert full.udf is not None
    assert full.udf.mode == "batch"
    assert full.serving_store is not None
    assert full.serving_store.kind == "nats"
    assert full.on_error.policy(served=False) == Backoff("2s", 3, 2.0, "60s")
    assert full.paused
    assert not made().paused


def test_the_tags_of_a_bypass_are_read(full: MonoVertexSpec) -> None:
    rules = (full.bypass.sink, full.bypass.fallback, full.bypass.on_success)
    tags = [rule.tags for rule in rules if rule is not None]
    assert [(one.operator, one.values) for one in tags if one is not None] == [
        ("not", ("new",)),
        ("or", ("bad", "late")),
        ("and", ("done", "paid")),
    ]
    assert made().bypass.sink is None


PARTITIONS: list[tuple[dict[str, int], int]] = [
    ({}, 1),
    ({"replicas": 0}, 1),
    ({"replicas": 3}, 3),
    ({"partitions": 2}, 2),
    ({"replicas": 3, "partitions": 2}, 2),
]


@pytest.mark.parametrize(("options", "expected"), PARTITIONS)
def test_replicas_set_the_partitions_unless_partitions_are_given(
    options: dict[str, int], expected: int
) -> None:
    assert made(**options).steps[0].streams.partitions == expected


def test_unset_limits_have_numaflows_defaults(full: MonoVertexSpec) -> None:
    assert made().limits == EffectiveLimits(500, 30_000, 80, 1_000, 500)
    assert full.limits == EffectiveLimits(50, 30_000, 80, 500, 50)


def test_a_monovertex_survives_pickling_and_a_json_round_trip(full: MonoVertexSpec) -> None:
    assert pickle.loads(pickle.dumps(full)) == full
    assert MonoVertexSpec.model_validate_json(full.model_dump_json(by_alias=True)) == full


def test_a_model_built_in_python_is_checked_by_the_same_rules(
    full: MonoVertexSpec, folder: Path
) -> None:
    assert check(full, folder) == []
    assert [str(problem) for problem in check(made(source={"generator": {}}))] == [
        "MonoVertex a: EB204 the MonoVertex has no sink"
    ]
