"""Each case changes one thing in a pipeline that lints and says what lint then reports."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from ebbflow.connectors import registry
from ebbflow.domain.code import Mode, SinkMode
from ebbflow.spec.validate import CODES
from tests.spec.linting import (
    NO_GROUP_BY,
    NO_RATE_LIMIT,
    NO_SIDE_INPUTS,
)

Lint = Callable[[str], list[str]]

GOOD = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {generator: {}}}
  - {name: enrich, udf: {python: "handlers:enrich"}}
  - {name: out, sink: {log: {}}}
  edges:
  - {from: in, to: enrich}
  - {from: enrich, to: out}
"""

NAME_RULE = (
    "is not a valid name: use at most 63 lower-case letters, digits and '-', "
    "starting with a letter and not ending with '-'"
)
SOURCES = ", ".join(registry.SOURCES)
SINKS = ", ".join(registry.SINKS)
IN, ENRICH, OUT = (line for line in GOOD.splitlines() if "name: " in line and "- " in line)
EDGES = "".join(GOOD.partition("  edges:\n")[1:])
TO_OUT = "{from: enrich, to: out}"

HEADER = [
    (
        "kind: Pipeline\n",
        "",
        ["1:1: EB102 'kind' is missing; write kind: Pipeline, MonoVertex or ServingPipeline"],
    ),
    (
        "Pipeline\n",
        "Deployment\n",
        ["2:7: EB005 unknown kind 'Deployment'; expected Pipeline, MonoVertex or ServingPipeline"],
    ),
    (
        "Pipeline\n",
        "[Pipeline]\n",
        ["2:7: EB005 unknown kind a list; expected Pipeline, MonoVertex or ServingPipeline"],
    ),
    (
        "v1alpha1",
        "v2",
        [
            "1:13: EB005 unknown apiVersion 'numaflow.numaproj.io/v2'; "
            "expected numaflow.numaproj.io/v1alpha1"
        ],
    ),
    ("metadata: {name: orders}\n", "", ["1:1: EB102 'metadata' is missing"]),
    ("{name: orders}", "{}", ["3:11: EB102 'name' is missing"]),
    ("orders", "Orders", [f"3:18: EB107 'Orders' {NAME_RULE}"]),
    (
        GOOD.partition("spec:")[2],
        " 5\n",
        ["4:7: EB103 'spec' must be a mapping, not a single value"],
    ),
    (
        GOOD,
        "just text\n",
        ["1:1: EB103 a pipeline is a mapping of apiVersion, kind, metadata, spec, not 'just text'"],
    ),
]

FIELDS = [
    ("  vertices:", "  vertexs:", ["5:3: EB101 unknown field 'vertexs'; did you mean 'vertices'?"]),
    (
        "log: {}",
        "log: {zq: 1}",
        ["8:30: EB101 unknown field 'zq'; valid here: none"],
    ),
    (
        "{from: in, to: enrich}",
        "{from: in, to: enrich, zq: 1}",
        ["10:28: EB101 unknown field 'zq'; valid here: from, to, conditions, onFull"],
    ),
    (
        "generator: {}",
        "generator: {msg_size: 3}",
        ["6:37: EB101 unknown field 'msg_size'; did you mean 'msgSize'?"],
    ),
    (
        "generator: {}",
        "generator: {rpu: '5'}",
        ["6:42: EB103 'rpu' must be a whole number, not '5'"],
    ),
    ("generator: {}", "generator: {rpu: 0}", ["6:42: EB104 'rpu' must be at least 1, not 0"]),
    (
        "generator: {}",
        "generator: {duration: 5}",
        ["6:47: EB105 'duration': 5 has no unit; write for example 1s"],
    ),
    (
        "generator: {}",
        "generator: {duration: 5 sec}",
        ["6:47: EB105 'duration': '5 sec' is not a duration; write for example 700ms, 5s or 1m30s"],
    ),
    (
        "generator: {}",
        "generator: {valueBlob: 'abc'}",
        ["6:48: EB106 'valueBlob': not base64: Incorrect padding"],
    ),
    ("generator: {}", "generator: 5", ["6:36: EB103 'generator' must be a mapping, not 5"]),
    (
        "name: enrich, ",
        "name: enrich, limits: {readBatchSize: 0}, ",
        ["7:44: EB104 'readBatchSize' must be at least 1, not 0"],
    ),
    (
        "name: enrich, ",
        "name: enrich, limits: {bufferUsageLimit: 101}, ",
        ["7:47: EB104 'bufferUsageLimit' must be at most 100, not 101"],
    ),
    (
        "name: out,",
        "name: out, partitions: -1,",
        ["8:29: EB104 'partitions' must be at least 0, not -1"],
    ),
    (
        "name: out,",
        "name: out, partitions: 1000000000,",
        ["8:29: EB104 'partitions' must be at most 1000, not 1000000000"],
    ),
    (
        "name: out,",
        "name: out, partitions: true,",
        ["8:29: EB103 'partitions' must be a whole number, not true"],
    ),
    (
        "name: out,",
        "name: out, ordered: {enabled: 'no'},",
        ["8:36: EB103 'enabled' must be true or false, not 'no'"],
    ),
    (
        "name: out, ",
        "",
        [
            "8:5: EB102 'name' is missing",
            "11:24: EB301 there is no vertex 'out'; there are in, enrich",
        ],
    ),
    (
        "{name: out, sink: {log: {}}}",
        "out",
        [
            "8:5: EB103 'vertices[2]' must be a mapping, not 'out'",
            "11:24: EB301 there is no vertex 'out'; there are in, enrich",
        ],
    ),
    (
        "{log: {}}",
        "{log: {name: out}, retryStrategy: {onFailure: fallback}}",
        [
            "8:30: EB101 unknown field 'name'; valid here: none",
            "8:69: EB502 onFailure is fallback, but there is no fallback sink",
        ],
    ),
    (
        "{python:",
        "{mode: rows, python:",
        [
            "7:32: EB104 'mode' must be 'unary', 'batch', 'stream', 'columnar' or 'pandas', "
            "not 'rows'"
        ],
    ),
    (
        "{log: {}}",
        "{udsink: {python: 'handlers:Store', mode: unary}}",
        ["8:65: EB104 'mode' must be 'batch', 'columnar' or 'pandas', not 'unary'"],
    ),
    (
        "{generator: {}}",
        "{generator: {}, transformer: {python: 'handlers:enrich', mode: batch}}",
        ["6:81: EB101 unknown field 'mode'; valid here: container, python, retryStrategy"],
    ),
    (
        "spec:\n",
        "spec:\n  lifecycle: {desiredPhase: Stopped}\n",
        ["5:29: EB104 'desiredPhase' must be 'Running' or 'Paused', not 'Stopped'"],
    ),
    ("from: in,", "", ["10:5: EB102 'from' is missing", "6:12: EB305 vertex 'in' is in no edge"]),
]

VERTICES = [
    (
        "name: out, sink: {log: {}}",
        "name: out, udf: {python: 'handlers:enrich'}",
        ["5:3: EB204 the pipeline has no sink", "8:12: EB304 map 'out' needs an edge out of it"],
    ),
    (ENRICH, f"{ENRICH}\n{ENRICH}", ["8:12: EB205 there is already a vertex named 'enrich'"]),
    (
        "name: out, sink: {log: {}}",
        "name: out",
        [
            "8:5: EB206 vertex 'out' must have exactly one of source, udf and sink; "
            "it has none of them",
        ],
    ),
    (
        "sink: {log: {}}",
        "sink: {log: {}}, source: {generator: {}}, udf: {python: 'handlers:enrich'}",
        [
            "8:5: EB206 vertex 'out' must have exactly one of source, udf and sink; "
            "it has source, udf and sink",
        ],
    ),
    ("{generator: {}}", "{}", [f"6:24: EB207 'source' needs one of {SOURCES}"]),
    ("{log: {}}", "{}", [f"8:23: EB207 'sink' needs one of {SINKS}"]),
    (
        "{log: {}}",
        "{log: {}, blackhole: {}}",
        ["8:23: EB207 'sink' can be only one of log and blackhole"],
    ),
    (
        "name: out,",
        "name: out-,",
        [
            f"8:12: EB107 'out-' {NAME_RULE}",
            "11:24: EB301 there is no vertex 'out'; did you mean 'out-'?",
        ],
    ),
    (
        GOOD.partition("  vertices:")[2],
        " []\n",
        ["5:3: EB201 the pipeline has no vertices: give it a source and a sink"],
    ),
]

USER_CODE = [
    (
        '{python: "handlers:enrich"}',
        "{}",
        ["7:25: EB208 'udf' has no code: name a Python function with python: module:attribute"],
    ),
    (
        'python: "handlers:enrich"',
        "container: {image: enrich:1}",
        [
            "7:26: EB902 there is no function for image 'enrich:1' of 'enrich'; write in "
            "bindings.yaml next to this file (or --bind FILE): enrich:1: {command: [PROGRAM]}, "
            "or {python: module:attribute}, or {sockets: FOLDER}"
        ],
    ),
    (
        "handlers:enrich",
        "handlers.enrich",
        ["7:34: EB401 'handlers.enrich' is not of the form module:attribute"],
    ),
    ('"handlers:enrich"', "5", ["7:34: EB401 'python': 5 is not of the form module:attribute"]),
    (
        "handlers:enrich",
        "handlers:enrch",
        [
            "7:34: EB402 cannot use 'handlers:enrch': "
            "'handlers' has no 'enrch'; did you mean 'enrich'?"
        ],
    ),
    (
        "{generator: {}}",
        "{generator: {}, transformer: {python: 'nowhere:fn'}}",
        [
            "6:62: EB402 cannot use 'nowhere:fn': "
            "there is no module 'nowhere' next to the pipeline or on the Python path"
        ],
    ),
    (
        "{log: {}}",
        "{udsink: {python: 'handlers:LIMIT'}}",
        [
            "8:41: EB402 cannot use 'handlers:LIMIT': "
            "'LIMIT' is of type int, not a function or class"
        ],
    ),
]

GRAPH = [
    (EDGES, "", ["5:3: EB202 the pipeline has no edges: connect its vertices"]),
    (
        f"{IN}\n",
        "",
        [
            "5:3: EB203 the pipeline has no source",
            "9:12: EB301 there is no vertex 'in'; there are enrich, out",
        ],
    ),
    (
        "to: enrich}",
        "to: enrch}",
        ["10:20: EB301 there is no vertex 'enrch'; did you mean 'enrich'?"],
    ),
    (TO_OUT, f"{TO_OUT}\n  - {TO_OUT}", ["12:5: EB302 the edge enrich → out is already there"]),
    (
        "to: out}",
        "to: out, conditions: {tags: {operator: and}}}",
        ["11:48: EB303 the condition needs values: the tags to look for with 'and'"],
    ),
    (
        "to: out}",
        "to: out, conditions: {tags: {values: [yes]}}}",
        ["11:58: EB103 'values[0]' must be text, not true; put it in quotes"],
    ),
    (
        "to: out}",
        "to: out, conditions: {tags: {operator: nor, values: [a]}}}",
        ["11:59: EB104 'operator' must be 'and', 'or' or 'not', not 'nor'"],
    ),
    (
        TO_OUT,
        f"{TO_OUT}\n  - {{from: out, to: in}}",
        [
            "6:12: EB304 source 'in' cannot have edges into it",
            "8:12: EB304 sink 'out' cannot have edges out of it",
        ],
    ),
    (
        EDGES,
        "  edges: [{from: in, to: out}, {from: out, to: enrich}]\n",
        [
            "7:12: EB304 map 'enrich' needs an edge out of it",
            "8:12: EB304 sink 'out' cannot have edges out of it; did you mean in → enrich → out?",
        ],
    ),
    (
        f"  - {TO_OUT}\n",
        "",
        [
            "7:12: EB304 map 'enrich' needs an edge out of it",
            "8:12: EB305 vertex 'out' is in no edge",
        ],
    ),
    (
        "{from: in, to: enrich}",
        "{from: in, to: out}",
        ["7:12: EB304 map 'enrich' needs an edge into it"],
    ),
    (
        EDGES,
        "  edges: [{from: in, to: out}, {from: enrich, to: enrich}]\n",
        ["7:12: EB306 no source leads to map 'enrich'"],
    ),
    (
        EDGES,
        "  - {name: in2, source: {generator: {}}}\n  - {name: out2, sink: {log: {}}}\n"
        f"{EDGES}  - {{from: in2, to: out2}}\n",
        ["9:12: EB306 source 'in2' is not connected to 'in': make it a separate pipeline"],
    ),
]

SINKS_BEHIND = [
    ("fallback: {}", [f"8:43: EB207 'fallback' needs one of {SINKS}"]),
    (
        "onSuccess: {log: {}, blackhole: {}}",
        ["8:44: EB207 'onSuccess' can be only one of log and blackhole"],
    ),
    (
        "fallback: {log: {}, fallback: {log: {}}}",
        [f"8:53: EB101 unknown field 'fallback'; valid here: {SINKS}"],
    ),
    (
        "onSuccess: {log: {}, retryStrategy: {}}",
        [f"8:54: EB101 unknown field 'retryStrategy'; valid here: {SINKS}"],
    ),
    (
        "fallback: {udsink: {}}",
        ["8:52: EB208 'udsink' has no code: name a Python function with python: module:attribute"],
    ),
    (
        "onSuccess: {udsink: {python: 'handlers:Stor'}}",
        ["8:62: EB402 cannot use 'handlers:Stor': 'handlers' has no 'Stor'; did you mean 'Store'?"],
    ),
    (
        "onSuccess: {serve: {}}",
        ["8:45: EB211 onSuccess cannot be a serve sink: make it the sink of a vertex"],
    ),
    (
        "fallback: {}, retryStrategy: {onFailure: fallback}",
        [
            f"8:43: EB207 'fallback' needs one of {SINKS}",
            "8:74: EB502 onFailure is fallback, but there is no fallback sink",
        ],
    ),
]

RETRIES = [
    ("", []),
    ("onFailure: retry", []),
    ("onFailure: ''", []),
    ("backoff: {interval: 5s, cap: 5s}", []),
    ("backoff: {interval: 1s, steps: 3, factor: 2, cap: 1m, jitter: 0.5}, onFailure: drop", []),
    ("backoff: {interval: 5s, cap: 1s}", ["EB501 'cap' (1000 ms) is below 'interval' (5000 ms)"]),
    ("backoff: {cap: 1ms}", []),
    ("backoff: {cap: 0s}", ["EB501 'cap' (0 ms) is below 'interval' (1 ms)"]),
    ("backoff: {steps: 0}", ["EB104 'steps' must be at least 1, not 0"]),
    ("backoff: {factor: 0.5}", ["EB104 'factor' must be at least 1, not 0.5"]),
    ("backoff: {factor: .inf}", ["EB104 'factor' must be finite, not inf"]),
    ("backoff: {jitter: 1}", ["EB104 'jitter' must be below 1, not 1"]),
    ("backoff: {jitter: -0.1}", ["EB104 'jitter' must be at least 0, not -0.1"]),
    ("onFailure: Drop", ["EB104 'onFailure' must be 'retry', 'fallback' or 'drop', not 'Drop'"]),
]

RETRYING = {
    "sink": ("{log: {}}", "{log: {}, retryStrategy: STRATEGY}"),
    "map": ("{python:", "{retryStrategy: STRATEGY, python:"),
    "transformer": (
        "{generator: {}}",
        "{generator: {}, transformer: {python: 'handlers:enrich', retryStrategy: STRATEGY}}",
    ),
}

NO_FALLBACK = {
    "sink": "there is no fallback sink",
    "map": "a map has no fallback sink: use retry or drop",
    "transformer": "a transformer has no fallback sink: use retry or drop",
}

STORES = [
    ("{nats: {}}", []),
    ("{nats: {bucket: answers}}", []),
    ("{nats: {bucket: Answers_2-b, ttl: 10m}}", []),
    ("{python: 'handlers:Store'}", []),
    (
        "{python: 'handlers:first_look'}",
        [
            "5:26: EB402 cannot use 'handlers:first_look': it has no method 'put'",
            "5:26: EB402 cannot use 'handlers:first_look': it has no method 'get'",
        ],
    ),
    ("{}", ["5:17: EB207 'servingStore' needs one of nats, python, container"]),
    (
        "{nats: {bucket: a}, python: 'handlers:Store'}",
        ["5:17: EB207 'servingStore' can be only one of nats and python"],
    ),
    ("{redis: {}}", ["5:18: EB101 unknown field 'redis'; valid here: container, python, nats"]),
    ("{nats: {bucket: 5}}", ["5:33: EB103 'bucket' must be text, not 5; put it in quotes"]),
    (
        "{nats: {bucket: my.answers}}",
        [
            "5:33: EB108 'bucket': 'my.answers' is not a bucket's name: "
            "use letters, digits, '_' and '-'"
        ],
    ),
    (
        "{nats: {bucket: a, ttl: 60}}",
        ["5:41: EB105 'ttl': 60 has no unit; write for example 1s"],
    ),
    (
        "{python: 'handlers.Store'}",
        ["5:26: EB401 'handlers.Store' is not of the form module:attribute"],
    ),
    (
        "{python: 'handlers:LIMIT'}",
        [
            "5:26: EB402 cannot use 'handlers:LIMIT': "
            "'LIMIT' is of type int, not a function or class"
        ],
    ),
]

NOT_YET = [
    (
        "{name: out,",
        "{name: out, sideInputs: [a],",
        f"8:17: EB901 sideInputs {NO_SIDE_INPUTS}",
    ),
    (
        "spec:\n",
        "spec:\n  sideInputs: [{name: a}]\n",
        f"5:3: EB901 sideInputs {NO_SIDE_INPUTS}",
    ),
    (
        "{name: out,",
        "{name: out, limits: {rateLimit: {max: 1}},",
        f"8:26: EB901 rateLimit {NO_RATE_LIMIT}",
    ),
    (
        "spec:\n",
        "spec:\n  limits: {rateLimit: {max: 1}}\n",
        f"5:12: EB901 rateLimit {NO_RATE_LIMIT}",
    ),
    (
        "{python:",
        "{groupBy: {}, python:",
        f"7:26: EB901 groupBy {NO_GROUP_BY}",
    ),
]

ACCEPTED = [
    ("{generator: {}}", "{udsource: {python: 'handlers:Queue'}}"),
    ("to: out}", "to: out, onFull: retryUntilSuccess}"),
    ("to: out}", "to: out, onFull: discardLatest}"),
    (TO_OUT, f"{TO_OUT}\n  - {{from: enrich, to: enrich}}"),
    (
        EDGES,
        "  - {name: again, udf: {python: 'handlers:enrich'}}\n"
        f"{EDGES}  - {{from: enrich, to: again}}\n  - {{from: again, to: enrich}}\n",
    ),
    ("name: out,", "name: out, ordered: {enabled: false},"),
    ("name: out,", "name: out, ordered: {enabled: true}, limits: {concurrency: 4},"),
    ("spec:\n", "spec:\n  ordered: {enabled: true}\n"),
    ("spec:\n", "spec:\n  lifecycle: {desiredPhase: Paused, pauseGracePeriodSeconds: 5}\n"),
    *[("{python:", f"{{mode: {mode}, python:") for mode in get_args(Mode)],
    *[
        ("{log: {}}", f"{{udsink: {{python: 'handlers:Store', mode: {mode}}}}}")
        for mode in get_args(SinkMode)
    ],
    ("{log: {}}", "{log: {}, fallback: {blackhole: {}}, onSuccess: {log: {}}}"),
    (
        "{log: {}}",
        "{udsink: {python: 'handlers:Store'}, fallback: {udsink: {python: 'handlers:Store'}}, "
        "retryStrategy: {onFailure: fallback}}",
    ),
    ("name: out,", "name: out, onError: {backoff: {steps: 0}},"),
    ("name: out,", "name: out, partitions: 4, limits: {concurrency: 2},"),
    (
        "{generator: {}}",
        "{generator: {messages: 10, jitter: 5ms}, transformer: {python: 'handlers:first_look'}}",
    ),
    ("{log: {}}", "{udsink: {python: 'handlers:Store', container: {image: 'a:1'}}}"),
    ("to: out}", "to: out, conditions: {tags: {operator: not, values: [small]}}}"),
    ('python: "handlers:enrich"', "python: os.path:join"),
    (GOOD, f"---\n{GOOD}---\n"),
    (GOOD, f"# two pipelines\n{GOOD}---\n{GOOD.replace('orders', 'returns')}"),
]


EMPTY = [
    ("{log: {}}", "{kafka: {brokers: [a], topic: b, tls: null, sasl: {}}}"),
    ("{log: {}}", "{kafka: {brokers: [a], topic: b, sasl: {mechanism: null, plain:}, config: ''}}"),
    ("{generator: {}}", "{kafka: {brokers: [a], topic: b, consumerGroup: ''}}"),
    ("{generator: {}}", "{nats: {url: 'nats://a', subject: b, queue: '', auth: {}}}"),
    ("{generator: {}}", "{nats: {url: 'nats://a', subject: b, auth: {basic: null}}}"),
    ("{generator: {}}", "{jetstream: {url: 'nats://a', stream: B, consumer: ''}}"),
    ("{generator: {}}", "{jetstream: {url: 'nats://a', stream: B, deliver_policy: ''}}"),
    ("{generator: {}}", "{http: {auth: {}, ports:, service:}}"),
    ("{generator: {}}", "{http: {auth: {token: null}}}"),
    ("{generator: {}}", "{generator: {rpu:, keyCount: null}, transformer:}"),
    ("{log: {}}", "{log: {}, retryStrategy:, fallback:, onSuccess: null}"),
    ("to: out}", "to: out, conditions:}"),
    ("to: out}", "to: out, conditions: {}, onFull:}"),
    ("to: out}", "to: out, conditions: {tags:}}"),
    ("spec:\n", "spec:\n  limits:\n  lifecycle: {desiredPhase: ''}\n  sideInputs: []\n"),
    ("spec:\n", "spec:\n  limits: {rateLimit: {}, readBatchSize:}\n  watermark:\n"),
    ("name: out,", "name: out, sideInputs: [], partitions:, limits:, onError:,"),
    ("name: out,", "name: out, partitions: 0,"),
]
"""Values that are treated as absent."""


@pytest.mark.parametrize(("old", "new"), EMPTY)
def test_empty_values_are_treated_as_absent(problems_of: Lint, old: str, new: str) -> None:
    assert problems_of(changed(old, new)) == []


def changed(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


def in_order(problems: list[str]) -> list[str]:
    return sorted(problems, key=lambda text: tuple(map(int, text.split(":")[:2])))


def test_a_good_pipeline_has_no_problems(problems_of: Lint) -> None:
    assert problems_of(GOOD) == []


@pytest.mark.parametrize(("old", "new", "expected"), HEADER + FIELDS + VERTICES + USER_CODE + GRAPH)
def test_each_mistake_is_reported_where_it_is(
    problems_of: Lint, old: str, new: str, expected: list[str]
) -> None:
    assert problems_of(changed(old, new)) == in_order(expected)


@pytest.mark.parametrize(("behind", "expected"), SINKS_BEHIND)
def test_fallback_and_on_success_sinks_are_checked_as_sinks(
    problems_of: Lint, behind: str, expected: list[str]
) -> None:
    assert problems_of(changed("{log: {}}", f"{{log: {{}}, {behind}}}")) == expected


def retrying(where: str, strategy: str) -> str:
    old, new = RETRYING[where]
    return changed(old, new.replace("STRATEGY", f"{{{strategy}}}"))


@pytest.mark.parametrize("where", RETRYING)
@pytest.mark.parametrize(("strategy", "expected"), RETRIES)
def test_an_invalid_retry_strategy_is_reported(
    problems_of: Lint, where: str, strategy: str, expected: list[str]
) -> None:
    found = problems_of(retrying(where, strategy))
    assert [problem.partition(": ")[2] for problem in found] == expected


@pytest.mark.parametrize("where", RETRYING)
def test_on_failure_fallback_needs_a_fallback_sink(problems_of: Lint, where: str) -> None:
    (found,) = problems_of(retrying(where, "onFailure: fallback"))
    assert found.partition(": ")[2] == f"EB502 onFailure is fallback, but {NO_FALLBACK[where]}"


@pytest.mark.parametrize(("store", "expected"), STORES)
def test_a_serving_store_is_a_bucket_or_a_class(
    problems_of: Lint, store: str, expected: list[str]
) -> None:
    assert problems_of(changed("spec:\n", f"spec:\n  servingStore: {store}\n")) == expected


def test_a_serve_sink_needs_a_store(problems_of: Lint) -> None:
    text = changed("{log: {}}", "{serve: {}}")
    assert problems_of(text) == [
        "8:24: EB211 the serve sink has no store: name one with servingStore: {nats: {}}"
    ]
    assert problems_of(text.replace("spec:\n", "spec:\n  servingStore: {nats: {}}\n")) == []


def test_a_wrong_store_does_not_hide_other_problems(problems_of: Lint) -> None:
    text = changed("spec:\n", "spec:\n  servingStore: {nats: {ttl: 60}}\n").replace(
        "to: out", "to: ot"
    )
    assert problems_of(text) == [
        "5:30: EB105 'ttl': 60 has no unit; write for example 1s",
        "12:24: EB301 there is no vertex 'ot'; did you mean 'out'?",
    ]


@pytest.mark.parametrize(("old", "new", "expected"), NOT_YET)
def test_unsupported_features_are_rejected(
    problems_of: Lint, old: str, new: str, expected: str
) -> None:
    assert problems_of(changed(old, new)) == [expected]


@pytest.mark.parametrize(("old", "new"), ACCEPTED)
def test_supported_features_are_accepted(problems_of: Lint, old: str, new: str) -> None:
    assert problems_of(changed(old, new)) == []


def test_all_problems_are_reported_at_once_in_file_order(problems_of: Lint) -> None:
    text = GOOD.replace("orders", "Orders").replace("generator: {}", "generator: {rpu: 0, rpm: 1}")
    text = text.replace("handlers:enrich", "handlers:LIMIT").replace("to: out}", "to: outt}")
    assert problems_of(text) == [
        f"3:18: EB107 'Orders' {NAME_RULE}",
        "6:42: EB104 'rpu' must be at least 1, not 0",
        "6:45: EB101 unknown field 'rpm'; did you mean 'rpu'?",
        "7:34: EB402 cannot use 'handlers:LIMIT': 'LIMIT' is of type int, not a function or class",
        "11:24: EB301 there is no vertex 'outt'; did you mean 'out'?",
    ]


def test_every_document_of_a_file_is_checked(problems_of: Lint) -> None:
    second = GOOD.replace("to: out}", "to: in}")
    assert problems_of(f"{GOOD}---\n{second}") == [
        "18:12: EB304 source 'in' cannot have edges into it",
        "20:12: EB305 vertex 'out' is in no edge",
    ]


def test_every_code_in_the_table_is_used_by_a_rule() -> None:
    import ebbflow

    sources = "".join(file.read_text() for file in Path(ebbflow.__path__[0]).rglob("*.py"))
    unused = [code for code in CODES if sources.count(f'"{code}"') < 2]
    assert unused == []
