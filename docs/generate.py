"""Write docs/reference from the code, so that it cannot say anything else than the code does.

    python docs/generate.py           write the pages
    python docs/generate.py --check   exit 1 if a page on disk is not what would be written

Each page is a function that returns text. Tables come from the same objects that the program
uses: the lint codes, the models of the spec, the commands, the counters, the public names, the
modules' docstrings. Tests are linked to the promises that their markers name.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Never, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

import ebbflow
import ebbflow.builders
import ebbflow.client
import ebbflow.datasource
import ebbflow.deadletters
import ebbflow.domain.errors
import ebbflow.operations
import ebbflow.publishing
import ebbflow.status
import ebbflow.testing
from ebbflow.cli.main import app
from ebbflow.cli.options import EXIT_CODES
from ebbflow.connectors import registry
from ebbflow.connectors.kafka import spec as kafka_fields
from ebbflow.connectors.listening import section
from ebbflow.connectors.nats import spec as jetstream_fields
from ebbflow.connectors.nats import spec as nats_fields
from ebbflow.connectors.postgres import spec as postgres_fields
from ebbflow.connectors.pubsub import spec as pubsub_fields
from ebbflow.connectors.pulsar import spec as pulsar_fields
from ebbflow.connectors.schema import fields as kinds
from ebbflow.connectors.schema.container import (
    POD_FIELDS,
    Container,
    Resources,
    Variable,
    VariablesFrom,
)
from ebbflow.connectors.schema.secrets import SecretRef, Tls
from ebbflow.datasource.jetstream import READ, WRITTEN
from ebbflow.datasource.options import READ_OPTIONS, WRITE_OPTIONS, Option
from ebbflow.domain.durations import DEFAULT_ON_ERROR, Backoff
from ebbflow.domain.outcome import COUNTERS
from ebbflow.engine.dead_letter import PREFIX, Letter
from ebbflow.engine.outage import DEFAULT_ON_UNAVAILABLE
from ebbflow.nats.publish import Tally
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.spec import sections
from ebbflow.spec.bindings import BUILT_IN, Binding, BuiltIn
from ebbflow.spec.kinds import SERVING_NO_EFFECT, ServingPipelineSpec
from ebbflow.spec.kubernetes import MONOVERTEX_NO_EFFECT, NO_EFFECT
from ebbflow.spec.model import EffectiveLimits, MonoVertexSpec, PipelineBody, PipelineSpec
from ebbflow.spec.rules.vertices import NOT_YET
from ebbflow.spec.validate import CODES
from ebbflow.status.metrics import METRICS, MetricKind
from ebbflow.status.run_report import Summary
from ebbflow.testing import SINK_RULES, SOURCE_RULES
from ebbflow.usercode.targets import resolve

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
TESTS = DOCS.parent / "tests"
PACKAGE = Path(ebbflow.__file__).parent
MADE = "<!-- Made from the code by docs/generate.py; change the code and run that. -->\n"

GROUPS = {
    "EB0": "The file",
    "EB1": "Fields",
    "EB2": "Vertices",
    "EB3": "Edges",
    "EB4": "User code",
    "EB5": "Retries",
    "EB6": "Serving",
    "EB9": "Not there yet",
}

COUNTER_MEANING = {
    "read": "messages given to the vertex, redeliveries included",
    "written": "output messages, once for each edge they went to; of a sink, messages taken, once "
    "for each of its sinks that took them",
    "done": "inputs that were processed",
    "redelivered": "inputs that were redelivered, for a nack, an exception or a retry",
    "dead_lettered": "inputs that went to the dead letters",
    "dropped": "inputs that ended without output: nothing returned, no edge wanted it, or a full "
    "buffer with `discardLatest` did not take it",
    "fallback": "inputs that the fallback sink took",
    "served": "of the done ones, those that were answered with SERVE",
    "on_success": "of the done ones, those that the on-success sink took as well",
}

OPTION_MEANING = {
    "drain": "end when all sources are exhausted and every message has ended",
    "timeout": "end after this time in any case",
    "master": "the Spark master; without it Spark runs on this machine",
    "state": "the folder for the embedded server's data and the logs",
    "nats": "the URL of your own NATS server; `EBBFLOW_NATS_URL` says the same",
    "login": "the `Login` for that server; without it the `EBBFLOW_NATS_` variables",
    "nats_port": "the port of the embedded server; 0 picks a free one",
    "durable": "whether the embedded server syncs every write to disk",
    "fresh": "whether to forget all earlier runs of this pipeline, dead letters too",
    "epoch": "how long Spark tasks live before they are renewed",
    "conf": "Spark settings; they win over Ebbflow's own",
    "spark_ui": "whether Spark serves its own pages; the run says where",
    "search": "the folder to look in first for `module:attribute` targets",
    "max_dead_letters": "stop the run, as failed, when it has made more dead letters than this",
    "log_level": "the lowest level at which the logs of user code are shown",
}


NOTES = {
    "Pipeline": "Options of every step: `partitions`, `limits`, `ordered`, `on_error`, "
    "`on_unavailable` and `breaker` "
    '(`limits=Limits(read_batch_size=50)`, `on_error=Backoff("2s", steps=3)`).',
    "Response": "A failure is tried again first if the sink has a `retryStrategy`. `fallback`, "
    "`serve` and `on_success` need a fallback sink, a serving store and an on-success sink; "
    "without them they break the contract. See [sinks](../guides/sinks.md).",
}


def pages() -> dict[str, str]:
    """Every page of the reference by the name of its file."""
    made = {
        "README.md": index(),
        "lint-codes.md": lint_codes(),
        "spec.md": spec(),
        "commands.md": commands(),
        "images.md": images(),
        "python.md": python(),
        "testing.md": testing(),
        "counters.md": counters(),
        "metrics.md": metrics(),
        "data-source.md": data_source(),
        "modules.md": modules(),
        "guarantee-tests.md": guarantee_tests(),
    }
    return {
        name: re.sub(r"\n{3,}", "\n\n", f"{MADE}\n{text.strip()}\n") for name, text in made.items()
    }


def index() -> str:
    """What is where."""
    return """# Reference

Made from the code.

- [Spec](spec.md): every field of a Pipeline and a MonoVertex in YAML, with its default
- [Lint codes](lint-codes.md): what each code means
- [Commands](commands.md): options and exit codes
- [Images](images.md): Numaflow's example images, for which Ebbflow has code
- [Python](python.md): every public name
- [Testing](testing.md): what `ebbflow.testing` has, and the rules for connectors
- [Counters](counters.md): the summary of a run, the facts of a dead letter
- [Metrics](metrics.md): what Prometheus reads, with labels
- [Data source](data-source.md): the options of `format("jetstream")` in Spark
- [Modules](modules.md): every module of the package and what it is for
- [Tests of the guarantees](guarantee-tests.md): which tests check which promise
"""


# --- lint codes ---------------------------------------------------------------------------------


def lint_codes() -> str:
    """One table a group of codes."""
    parts = [
        "# Lint codes",
        "`ebbflow lint` prints `file:line:column: code message`. A code never changes its meaning.",
    ]
    for prefix, title in GROUPS.items():
        rows = [(f"`{code}`", text) for code, text in CODES.items() if code.startswith(prefix)]
        parts += [f"## {title}", table(("code", "meaning"), rows)]
    return "\n\n".join(parts)


# --- the spec -----------------------------------------------------------------------------------


def spec() -> str:
    """Every field of the three kinds, those without effect, and what is refused."""
    columns = ("field", "value", "default", "meaning")
    return "\n\n".join(
        [
            "# Spec",
            "A file holds a Numaflow `Pipeline`, `MonoVertex` or `ServingPipeline` "
            "(`numaflow.numaproj.io/v1alpha1`). "
            "Beyond Numaflow there are `python` next to each `container`, `mode` of a udf, "
            "`onError`, `onUnavailable`, `breaker`, `servingStore`, `partitions` of a MonoVertex, "
            "`messages` of the generator, and a `serving` source with its own fields in a "
            "Pipeline or MonoVertex. Unknown fields are refused.",
            "## Fields of a Pipeline",
            table(columns, spec_fields(PipelineSpec, "", NO_EFFECT, FOLDED)),
            "## Fields of a MonoVertex",
            table(
                columns, spec_fields(MonoVertexSpec, "", MONOVERTEX_NO_EFFECT, FOLDED | AS_ABOVE)
            ),
            "## Fields of a ServingPipeline",
            "It runs as the Pipeline in `spec.pipeline`, whose serving source has the fields of "
            "`spec.serving`. Without a `store` answers are kept in NATS.",
            table(
                columns,
                spec_fields(ServingPipelineSpec, "", SERVING_NO_EFFECT, FOLDED | AS_PIPELINE),
            ),
            "## Containers",
            "The [function](../guides/numaflow.md#functions-in-other-languages) in a `container` "
            "reads as in Kubernetes. The "
            "fields of a pod that `fieldRef` may name are "
            + ", ".join(f"`{name}`" for name in POD_FIELDS)
            + ".",
            table(columns, spec_fields(Container, "container.", {}, FOLDED)),
            "## Bindings",
            "The file `bindings.yaml` next to a pipeline, or that of `--bind`, is a mapping from "
            "names of images to what runs in their place. Each has exactly one of `command`, "
            "`python` and `sockets`.",
            table(columns, spec_fields(Binding, "", {}, FOLDED)),
            "## Retry strategy",
            table(columns, spec_fields(sections.RetrySpec, "retryStrategy.", {}, {})),
            "## Secrets",
            "A spec never holds a secret. It says where Ebbflow reads the secret when the pipeline "
            "starts: one of these.",
            table(columns, spec_fields(SecretRef, "", {}, {})),
            "The third way is that of Numaflow: [secrets of Kubernetes](../guides/security.md"
            "#secrets-of-kubernetes) come from a variable, a folder or a document next to the "
            "pipeline.",
            "## TLS",
            "Whom a connector trusts, and its own certificate. All in PEM form.",
            table(columns, spec_fields(Tls, "tls.", {}, FOLDED)),
            "## Limits",
            "The limits of a vertex win over those of the pipeline. The defaults are "
            f"{effective_limits()}, and 2,000 rows "
            "for `columnar` and `pandas` maps. If `readBatchSize` is set and `concurrency` is not, "
            "`concurrency` is the same number.",
            "## Back-off",
            "`onError` and `onUnavailable` have the same `backoff`. In `onError` `steps` may be 0, "
            "`onUnavailable` has none: a vertex waits for as long as it takes. `steps` "
            "counts the calls after the first one. The defaults:",
            table(
                ("of", *(one.name for one in fields(sections.DEFAULT_RETRY))),
                [
                    ("`onError`", *backoff_texts(DEFAULT_ON_ERROR)),
                    ("`onUnavailable`", *backoff_texts(DEFAULT_ON_UNAVAILABLE)),
                    ("`retryStrategy`", *backoff_texts(sections.DEFAULT_RETRY)),
                ],
            ),
            "A default `cap` is never below the `interval`.",
            "## Accepted without effect",
            "These fields mean something on Kubernetes only. Lint checks their spelling. User code "
            "sees `metadata.namespace` as `NUMAFLOW_NAMESPACE`.",
            table(("kind", "in", "fields"), no_effect()),
            "## Not supported",
            "Lint refuses these with EB901, so that no field is silently without effect, and says "
            "what to do instead.",
            table(("feature", "field", "instead"), missing()),
        ]
    )


def no_effect() -> Iterator[tuple[str, ...]]:
    """The fields that are accepted without effect, by kind and place."""
    kinds_of_spec = {
        "Pipeline": NO_EFFECT,
        "MonoVertex": MONOVERTEX_NO_EFFECT,
        "ServingPipeline": SERVING_NO_EFFECT,
    }
    for kind, places in kinds_of_spec.items():
        for where, names in places.items():
            yield kind, f"`{where or '(top)'}`", ", ".join(f"`{name}`" for name in names)


def missing() -> Iterator[tuple[str, ...]]:
    """What is refused, each feature once; fields as they are called inside a vertex."""
    places: dict[str, list[str]] = {}
    instead: dict[str, str] = {}
    for field, feature in NOT_YET.items():
        short = field.removeprefix("spec.").removeprefix("vertices[].")
        instead[feature.name] = feature.instead
        if f"`{short}`" not in places.setdefault(feature.name, []):
            places[feature.name].append(f"`{short}`")
    for feature_name, names in places.items():
        yield feature_name, ", ".join(names), instead[feature_name]
    yield "GSSAPI and OAUTHBEARER of Kafka", "`sasl`", "log in with PLAIN or SCRAM, or with `tls`"


FOLDED: dict[type[BaseModel], tuple[str, str]] = {
    sections.RetrySpec: (
        "[retry strategy](#retry-strategy)",
        "retries of what user code reports as failed",
    ),
    sections.OnErrorBackoff: ("[back-off](#back-off)", "redeliveries after an exception"),
    sections.SinkTarget: ("any kind of sink, as in `sink`", "another sink"),
    SecretRef: ("[secret](#secrets)", "a secret"),
    Container: ("[container](#containers)", "the function as a container"),
    Variable: (
        "list of `name` with `value`, or with `valueFrom`: `secretKeyRef`, `configMapKeyRef` or "
        "`fieldRef`",
        "variables of its environment",
    ),
    VariablesFrom: (
        "list of `secretRef` or `configMapRef`, each with a `name`, and a `prefix`",
        "variables for all keys of a Secret or ConfigMap",
    ),
    Resources: ("`limits` and `requests`, each with `cpu` and `memory`", "how much it may use"),
    Tls: ("[TLS](#tls)", "whom to trust, and the client's own certificate"),
    nats_fields.NatsAuth: (
        "`basic` with `user` and `password`, `token`, `nkey` or `creds`; each a [secret](#secrets)",
        "how to log in",
    ),
    pulsar_fields.PulsarAuth: (
        "`token`, a [secret](#secrets), or `basicAuth` with `username` and `password`, each a "
        "secret",
        "how to log in",
    ),
    kafka_fields.SaslUser: (
        "`userSecret` and `passwordSecret`, each a [secret](#secrets)",
        "who logs in by this mechanism",
    ),
}
AS_ABOVE: dict[type[BaseModel], tuple[str, str]] = {
    sections.SourceSpec: (
        "as `spec.vertices[].source` above",
        "where messages come from; required",
    ),
    sections.Udf: ("as `spec.vertices[].udf` above", "the map; may be left out"),
    sections.SinkSpec: ("as `spec.vertices[].sink` above", "where messages end; required"),
}
AS_PIPELINE: dict[type[BaseModel], tuple[str, str]] = {
    PipelineBody: ("as `spec` of a Pipeline above", "the pipeline; its source is `serving: {}`"),
    sections.ServingStoreSpec: ("as `spec.servingStore` above", "where answers are kept"),
}
"""Sections that are told in one line, because they are told in full elsewhere on the page."""


def spec_fields(
    section: type[BaseModel],
    prefix: str,
    ignored: Mapping[str, Sequence[str]],
    folded: Mapping[type[BaseModel], tuple[str, str]],
) -> Iterator[tuple[str, ...]]:
    """A row for each field, and for those of the sections inside."""
    for field in section.model_fields.values():
        path = f"{prefix}{field.alias}"
        if not runs(path, ignored):
            continue
        shipped = registry.section_in(field)
        if shipped is not None and shipped.section is None:
            continue
        inside, listed = (shipped.section, False) if shipped else section_in(field.annotation)
        if inside is None:
            yield f"`{path}`", value_text(field), default_text(field), meaning(path, field)
        elif inside in folded:
            value, text = folded[inside]
            yield f"`{path}`", value, required_text(field), meaning(path, field, text)
        elif inside.model_fields:
            yield from spec_fields(inside, f"{path}{'[]' * listed}.", ignored, folded)
        else:
            yield f"`{path}`", "`{}`", "none", meaning(path, field)


FIELD_MEANING = {
    "apiVersion": "always this",
    "kind": "always this",
    "metadata.name": "a DNS label; the name that commands and streams use",
    "vertices[].name": "a DNS label, unique in the pipeline",
    "udf.sql": "a query over the view `messages`, in place of code: see "
    "[Spark](../guides/spark.md)",
    "udf.dataframe": "a function from DataFrame to DataFrame, in place of code",
    "log": "prints every message",
    "blackhole": "forgets every message",
    "serve": "stores the value of every message as an [answer](../guides/sinks.md#answers)",
    "mode": "what one call gets and how it answers: see [maps](../guides/maps.md)",
    "vertices[].partitions": "the number of buffers and Spark tasks; 0 counts as 1",
    "spec.partitions": "the number of Spark tasks; left out, `replicas`, else 1; 0 counts as 1",
    "interStepBuffer.replicas": "the number of NATS servers that keep each stream: see "
    "[clusters](../guides/cluster.md)",
    "publish.retryWait": "the wait before something is published again",
    "publish.retryAttempts": "the most attempts after the first; `-1` for no limit",
    "publish.ackWait": "the longest time for all attempts; left out, there is no limit",
    "replicas": "as `partitions`",
    "readBatchSize": "the most messages that one call of a sink, or of a map in the modes "
    "`batch`, `columnar` and `pandas`, gets",
    "bufferMaxLength": "the most frames in a buffer, per partition",
    "bufferUsageLimit": "the percentage of `bufferMaxLength` at which the buffer is full",
    "callTimeout": "how long one call of user code may take, such as `30s`; left out, there is no "
    "limit. See [user code](../guides/writing-user-code.md#calls-that-hang)",
    "concurrency": "how many calls of an `async` map run at once",
    "ordered.enabled": "messages with the same keys stay in order: see "
    "[routing](../guides/routing.md); a vertex that says nothing does as the pipeline",
    "desiredPhase": "`Paused`: sources read nothing new; messages that were read continue",
    "nats.bucket": "the key-value bucket for answers; letters, digits, `_` and `-`. Left out, "
    "`ebb_<pipeline>_answers`",
    "nats.ttl": "how long answers are kept",
    "servingStore.python": "a class with `put` and `get`, in place of `nats`",
    "backoff.interval": "the first wait",
    "backoff.steps": "the most retries after the first call",
    "onFailure": "after the last step: keep retrying, use the fallback sink (sinks only), or make "
    "a dead letter",
    "fallback": "the sink for what `sink` cannot write",
    "onSuccess": "the sink for what `sink` passes on",
    "tags.operator": "any, all or none of the tags",
    "tags.values": "the tags",
    "onUnavailable.errors": "further exceptions that say that a system is down, as `module:Class`",
    "breaker.share": "the most dead letters among the last messages, as a share; 1 means no limit",
    "breaker.window": "how many of the last messages are looked at",
    "backoff.factor": "how much longer each wait is than the one before",
    "backoff.cap": "the longest wait",
    "backoff.jitter": "the share by which a wait may be longer or shorter",
    "from": "the vertex the messages leave",
    "to": "the vertex they go to",
    "onFull": "a full buffer: wait for room, or drop and count",
}


def meaning(path: str, field: FieldInfo, otherwise: str | None = None) -> str:
    """What a field is for: its own description, else the longest ending that is known."""
    endings = [".".join(path.split(".")[-count:]) for count in (3, 2, 1)]
    known = next((FIELD_MEANING[name] for name in endings if name in FIELD_MEANING), otherwise)
    text = field.description or known
    assert text is not None, f"neither its description nor FIELD_MEANING says what {path} is for"
    return text


def runs(path: str, ignored: Mapping[str, Sequence[str]]) -> bool:
    """Whether a field has a meaning here, at least for some of its values."""
    where, _, name = path.rpartition(".")
    return name not in ignored.get(where, ()) and path not in NOT_YET


def section_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that a field holds, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        inside, listed = section_in(argument)
        if inside is not None:
            return inside, listed or get_origin(annotation) is tuple
    return None, False


KIND_TEXT = {
    kinds.Millis: "duration, such as `5s`",
    kinds.Wait: "duration above 0, such as `250ms`",
    kinds.Attempts: "whole number from -1",
    kinds.Replicas: "whole number from 1 to 5",
    kinds.Base64: "bytes in base64",
    kinds.Bucket: "text",
    kinds.Code: "`module:attribute`",
    kinds.Positive: "whole number from 1",
    kinds.Count: "whole number from 0",
    kinds.Percentage: "whole number from 1 to 100",
    kinds.Factor: "number from 1",
    kinds.ErrorClass: "text, as `module:Class`",
    kinds.Jitter: "number from 0 to below 1",
    section.Port: "port; 0 picks a free one",
    nats_fields.Url: "URL",
    nats_fields.Subject: "subject",
    nats_fields.Pattern: "subject",
    nats_fields.HeaderName: "header",
    jetstream_fields.Name: "text",
    jetstream_fields.Policy: "text",
    postgres_fields.Url: "URL",
    pulsar_fields.Address: "URL",
    pubsub_fields.AckDeadline: "duration from 10s to 600s",
    kafka_fields.Topics: "text, with commas between several, or a list",
    kafka_fields.Config: "mapping, or text of `key: value` lines",
}
PLAIN_TEXT = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    Any: "anything",
}


def value_text(field: FieldInfo) -> str:
    """What may be written there."""
    # Of a kind that cannot be left out pydantic keeps the type and the bounds apart.
    bounds = {
        name: getattr(part, name)
        for part in field.metadata
        for name in ("ge", "gt", "le")
        if getattr(part, name, None) is not None
    }
    text = type_text(field.rebuild_annotation() if field.metadata else field.annotation)
    text += f" from {bounds['ge']}" if "ge" in bounds else ""
    text += f" above {bounds['gt']}" if "gt" in bounds else ""
    return text + (f" to {bounds['le']}" if "le" in bounds else "")


def type_text(annotation: Any) -> str:
    """A type in words."""
    for kind, text in KIND_TEXT.items():
        if annotation == kind:
            return text
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return type_text(next(a for a in arguments if a is not NoneType))
    if origin is Literal:
        return " or ".join(f"`{a}`" for a in arguments)
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return f"mapping of {type_text(arguments[0])} to {type_text(arguments[1])}"
    if hasattr(annotation, "__metadata__"):
        return type_text(arguments[0])
    return PLAIN_TEXT[annotation]


def required_text(field: FieldInfo) -> str:
    """Whether a section has to be there."""
    return "required" if field.is_required() else "none"


def default_text(field: FieldInfo) -> str:
    """What holds if it is left out."""
    if field.is_required() or field.alias in ("apiVersion", "kind"):
        return "required"
    value = field.default
    if value is None or value in ((), {}):
        return "none"
    if "duration" in value_text(field):
        return f"`{duration(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def duration(milliseconds: int) -> str:
    """As one would write it."""
    for size, unit in ((3_600_000, "h"), (1_000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def effective_limits() -> str:
    """The limits that hold when nobody sets any."""
    limits = EffectiveLimits()
    return ", ".join(
        f"`{camel(one.name)}` {getattr(limits, one.name):,}"
        + (" ms" if "timeout" in one.name else "")
        for one in fields(limits)
        if getattr(limits, one.name) is not None
    )


def camel(name: str) -> str:
    """``read_batch_size`` → ``readBatchSize``."""
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def backoff_texts(policy: Backoff) -> Iterator[str]:
    """A back-off, field by field."""
    for one in fields(policy):
        value = getattr(policy, one.name)
        endless = policy is DEFAULT_ON_UNAVAILABLE and one.name == "steps"
        longest = endless or (one.name == "cap" and value == sections.DEFAULT_RETRY.cap)
        unit = " ms" if one.name in ("interval", "cap") else ""
        yield "none" if longest else f"{value:g}{unit}" if value < 10**5 else f"{value}{unit}"


# --- commands -----------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands"]
    for name, command in leaves(get_command(app), "ebbflow"):
        context = command.make_context(name, ["x"] * required(command), resilient_parsing=True)
        records = [parameter.get_help_record(context) for parameter in command.params]
        rows = [(f"`{tidy(left)}`", tidy(right)) for left, right in filter(None, records)]
        parts += [f"## {name}", tidy(command.help), table(("argument or option", "meaning"), rows)]
    parts += [
        "## Exit codes",
        table(("code", "meaning"), [(str(int(code)), text) for code, text in EXIT_CODES.items()]),
    ]
    return "\n\n".join(parts)


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands that do something, by what is typed."""
    inside = getattr(command, "commands", None)
    if inside is None:
        yield name, command
        return
    for part, one in inside.items():
        yield from leaves(one, f"{name} {part}")


def required(command: Any) -> int:
    """How many arguments must be there."""
    return sum(p.required and p.param_type_name == "argument" for p in command.params)


def tidy(text: str | None) -> str:
    """On one line, and safe in a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


# --- Python -------------------------------------------------------------------------------------


PUBLIC = (
    ebbflow,
    ebbflow.builders,
    ebbflow.deadletters,
    ebbflow.operations,
    ebbflow.status,
    ebbflow.domain.errors,
    ebbflow.publishing,
    ebbflow.client,
    ebbflow.datasource,
    ebbflow.testing,
)
ELSEWHERE = {ebbflow.datasource: "data-source.md", ebbflow.testing: "testing.md"}


def python() -> str:
    """Every public name, from its docstring."""
    parts = [
        "# Python",
        "These modules and names are public. Everything else is internal and may change in any "
        "version.",
        table(("module", "names"), map(public_names, PUBLIC)),
    ]
    here = [module for module in PUBLIC if module not in ELSEWHERE]
    exported = {name: getattr(module, name) for module in here for name in module.__all__}
    parts += described_names(exported)
    defaults = {one.name: one.default for one in fields(RunOptions)}
    rows = [(f"`{n}`", OPTION_MEANING[n], f"`{shown(v)}`") for n, v in defaults.items()]
    parts += [
        "## Options of Pipeline.run",
        table(("option", "meaning", "default"), rows),
        "The same for `MonoVertex.run`, and for `start`, which returns a `PipelineRun`. In a "
        "terminal and in a notebook `run` shows its progress. Elsewhere, and with `quiet=True`, "
        "what vertices print, a `log` sink included, goes to standard output, what they log to the "
        "logger `ebbflow.VERTEX`, and the logger `ebbflow` gets the rest. `quiet=False` shows "
        "progress everywhere; your own `watcher` receives everything instead. The result is a "
        "`Summary`.",
    ]
    return "\n\n".join(parts)


def public_names(module: ModuleType) -> tuple[str, str]:
    """A row of the table of modules: each name with a link to its description."""
    page = ELSEWHERE.get(module, "")
    names = [name for name in sorted(module.__all__) if not name.startswith("__")]
    links, slugs = [], []
    for name in names:
        slugs.append(name.lower())
        again = slugs.count(name.lower()) - 1  # a second heading that is spelled alike
        anchor = f"{name.lower()}-{again}" if again else name.lower()
        links.append(f"[`{name}`]({page}#{anchor})" if has_section(module, name) else f"`{name}`")
    return f"`{module.__name__}`", ", ".join(links)


def has_section(module: ModuleType, name: str) -> bool:
    """Whether the page of the module describes the name under a heading of its own."""
    return module is not ebbflow.datasource and callable(getattr(module, name))


def described_names(exported: dict[str, Any]) -> Iterator[str]:
    """The descriptions of public names, each once, though several modules may export it."""
    for name in (n for n in exported if not n.startswith("__")):
        yield from described(name, exported[name])
        yield from [NOTES[name]] if name in NOTES else []


def described(name: str, thing: Any) -> Iterator[str]:
    """How a class or function is called, what it is, and what it has."""
    yield from (f"## {name}", f"```text\n{name}{signature(thing)}\n```", docstring(thing))
    if rows := [*attributes(thing), *members(thing)]:
        yield table(("member", "meaning"), rows)


def attributes(thing: Any) -> list[tuple[str, str]]:
    """The attributes with a default and a text below them, those of base classes first."""
    found = []
    for base in reversed(thing.__mro__) if inspect.isclass(thing) else ():
        if not base.__module__.startswith("ebbflow.testing"):
            continue
        body = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined]
        for one, text in pairwise(body):
            if isinstance(one, ast.AnnAssign) and one.value and isinstance(text, ast.Expr):
                meaning = docstring(SimpleNamespace(__doc__=ast.literal_eval(text.value)))
                default = ast.unparse(one.value).replace("MappingProxyType({})", "{}")
                found.append((f"`{ast.unparse(one.target)} = {default}`", tidy(meaning)))
    return found


def testing() -> str:
    """What tests can use, and the rules for connectors."""
    parts = [
        "# Testing",
        "Everything that `import ebbflow.testing` gives, and the rules that connectors keep. "
        "How to use it: [testing](../guides/testing.md).",
    ]
    for title, rules in (("sources", SOURCE_RULES), ("sinks", SINK_RULES)):
        rows = [(f"`{rule.__name__}`", tidy(docstring(rule))) for rule in rules]
        parts += [f"## Rules for {title}", table(("rule", "what it says"), rows)]
    for name in sorted(ebbflow.testing.__all__):
        thing = getattr(ebbflow.testing, name)
        parts += described(name, thing) if callable(thing) else ()
    return "\n\n".join(parts)


def shown(default: Any) -> str:
    """A default as one would write it."""
    if isinstance(default, Path):
        return str(default)
    return repr(default) if isinstance(default, str | int | float | NoneType) else "{}"


def signature(thing: Any) -> str:
    """How it is called; a parameter a line where one line would be too long."""
    if inspect.isclass(thing) and "__init__" not in vars(thing):
        return ""
    if getattr(thing, "_is_protocol", False):
        return ""  # nobody calls it; users write a class that looks like it
    called = inspect.signature(thing)
    parts = list(signature_parts(called))
    returned = annotation_text(called.return_annotation)
    answer = "" if inspect.isclass(thing) or returned == "None" else f" -> {returned}"
    line = f"({', '.join(parts)}){answer}"
    if len(line) <= WIDTH:
        return line
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"


WIDTH = 70
"""The longest list of parameters that stays on one line."""


def signature_parts(called: inspect.Signature) -> Iterator[str]:
    """Each parameter with its type and default, and the star before those by keyword only."""
    starred = False
    for one in called.parameters.values():
        if one.annotation in (Never, "Never"):
            continue  # it takes misspelt names, and refuses them
        if one.kind is one.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f" = {default_shown(one.default)}"
        yield f"{stars}{one.name}: {annotation_text(one.annotation)}{default}"


def annotation_text(annotation: Any) -> str:
    """A type as it is written in the code."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def default_shown(default: Any) -> str:
    """A default that is short to write; three dots stand for any other."""
    plain = isinstance(default, str | bytes | int | float | NoneType) or default == ()
    return f"{default!r}".replace("'", '"') if plain else "..."


def docstring(thing: Any) -> str:
    """The docstring in Markdown."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def members(thing: Any) -> list[tuple[str, str]]:
    """The public methods and properties that say what they are."""
    found = []
    for name, member in vars(thing).items() if inspect.isclass(thing) else ():
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        call = "" if isinstance(member, property) else f"({parameters(function)})"
        summary = docstring(function).partition("\n\n")[0]
        found.append((f"`{name}{call}`", tidy(summary)))
    return found


def parameters(function: Any) -> str:
    """The names to call it with."""
    names = []
    for one in inspect.signature(function).parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        names.append(f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name)
    return ", ".join(names)


# --- counters -----------------------------------------------------------------------------------


def counters() -> str:
    """The summary and the headers of a dead letter."""
    rows = [(f"`{name}`", COUNTER_MEANING[name]) for name in COUNTERS]
    return "\n\n".join(
        [
            "# Counters",
            "`ebbflow run --summary FILE` writes JSON with these keys: "
            f"{', '.join(f'`{key}`' for key in Summary('', '', 0.0, {}, {}).facts())}. "
            "`vertices` has the counts of this run by vertex, `totals` those since the first run "
            "of the pipeline. `ended` is `drained`, `timeout`, `stopped` or `failed`. `left` says "
            "for each vertex where messages are left how many, until when and why.",
            table(("counter", "what it counts"), rows),
            "For every vertex `read = done + redelivered + dead_lettered + dropped + fallback`.",
            "`publishing` counts what vertices met in this run when they wrote to NATS. Tasks "
            "report it as they go; if one was killed, its last half second may be missing.",
            table(("counter", "what it counts"), tally_rows()),
            "## Facts of a dead letter",
            "A dead letter is a plain JetStream message. Its body is the value; each fact is a "
            f"header whose name begins with `{PREFIX}` and whose text is JSON.",
            table(("header", "fact"), letter_facts()),
        ]
    )


def metrics() -> str:
    """Every metric with its labels, those with Numaflow's names first."""
    ours = [metric for metric in METRICS if metric.name.startswith("ebbflow_")]
    theirs = [metric for metric in METRICS if metric not in ours]
    return "\n\n".join(
        [
            "# Metrics",
            "What `/metrics` tells Prometheus. How to switch it on, a scrape configuration and "
            "alerts: [monitoring](../guides/monitoring.md).",
            "Counters are totals since the pipeline was first started, unless they are of this "
            "run. Times are histograms in microseconds. There is one series for a vertex, over "
            "all its partitions, and no label has a text that messages or errors make up.",
            "## With Numaflow's names",
            "`vertex_type` is `Source`, `MapUDF` or `Sink`. Numaflow's labels `replica`, "
            "`partition_name` and `reason` are left out.",
            metric_table(theirs),
            "## Ebbflow's own",
            "A MonoVertex has these as well, with the `vertex_type` `MonoVertex`.",
            metric_table(ours),
        ]
    )


def metric_table(metrics: Iterable[MetricKind]) -> str:
    """Metrics in the order in which they are sent."""
    rows = [
        (f"`{m.full_name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.about)
        for m in metrics
    ]
    return table(("metric", "type", "labels", "what it says"), rows)


def tally_rows() -> list[tuple[str, str]]:
    """The counters of publishing in the order of the class."""
    return [(f"`{field.name}`", TALLY_MEANING[field.name]) for field in fields(Tally)]


TALLY_MEANING = {
    "attempts": "attempts to publish",
    "no_responders": "attempts that found no listener: the stream has no leader, or is gone",
    "unanswered": "attempts without an answer, as when a server is killed",
    "full": "attempts that a full buffer refused",
    "refused": "attempts that the server could not take for a moment: it has no leader, or no room",
    "confirmed": "publications that the server has stored",
    "refusal": "the server's words when it last refused",
}


def letter_facts() -> Iterable[tuple[str, str]]:
    """The headers in the order of the class."""
    for field in fields(Letter):
        if field.name != "value":
            header = "-".join(map(str.title, field.name.split("_")))
            yield f"`{PREFIX}{header}`", LETTER_MEANING[field.name]


LETTER_MEANING = {
    "id": "the id of the message",
    "vertex": "the vertex where it died",
    "reason": "why, in a few words",
    "error": "the error on one line, if there was one",
    "traceback": "the traceback, if user code raised",
    "deliveries": "how often it had been given to the vertex",
    "first_seen": "when it first came to the vertex",
    "last_seen": "when it died",
    "event_time": "its event time",
    "keys": "its keys",
    "headers": "its headers",
    "metadata": "its metadata, values in base64",
    "size": "the length of the value, if the value had to be cut",
    "unread": "`true` if the value is what a source could not make a message of",
}


# --- the data source ----------------------------------------------------------------------------


def data_source() -> str:
    """The options and the columns."""
    read = [(f"`{field.name}`", f"`{field.dataType.simpleString()}`") for field in READ]
    return "\n\n".join(
        [
            "# Data source",
            'The options of `format("jetstream")`; how to use it is in '
            "[a guide](../guides/spark-data-source.md). Case does not matter in their names. A "
            "query refuses unknown options and values that make no sense.",
            "## Reading",
            option_table(READ_OPTIONS),
            "## Writing",
            option_table(WRITE_OPTIONS),
            "## Columns that are read",
            table(("column", "type"), read),
            "## Columns that can be written",
            f"{', '.join(f'`{name}`' for name in WRITTEN)}. Only the first is required.",
        ]
    )


def option_table(options: Iterable[Option]) -> str:
    """One row each."""
    rows = [(f"`{one.name}`", one.value, one.default, one.meaning) for one in options]
    return table(("option", "value", "default", "meaning"), rows)


# --- fields on the pages of connectors ----------------------------------------------------------

FIELDS = re.compile(r"(<!-- fields: ([\w.]+) -->\n).*?(<!-- end of fields -->)", re.DOTALL)
"""A place in a guide where the table of a section's fields stands."""


def guides() -> dict[Path, str]:
    """The guides that have tables made from the code, by their path, with these as they are now."""
    texts = {path: path.read_text(encoding="utf-8") for path in (DOCS / "guides").rglob("*.md")}
    return {
        path: with_tables(text, path.parent)
        for path, text in sorted(texts.items())
        if FIELDS.search(text)
    }


def with_tables(text: str, folder: Path) -> str:
    """A guide with its tables as they are now."""
    return FIELDS.sub(lambda found: f"{found[1]}{fields_of(found[2], folder)}\n{found[3]}", text)


def images() -> str:
    """The table of images that Ebbflow stands in for, those of the same code together."""
    names: dict[BuiltIn, list[str]] = {}
    for name, entry in BUILT_IN.items():
        names.setdefault(entry, []).append(f"`{name}`")
    rows = (
        (", ".join(all_), f"`{entry.place}`", docstring(resolve(entry.target)).split("\n\n")[0])
        for entry, all_ in names.items()
    )
    return "\n\n".join(
        [
            "# Images",
            "Ebbflow has its own code for the images that most of Numaflow's examples use, "
            "whatever their registry and tag, as long as they lie in a folder `numaflow-go`, "
            "`numaflow-python`, `numaflow-java` or `numaflow-rs`. They need no "
            "[binding](../guides/numaflow.md#bindings).",
            table(("image", "section", "what it does"), rows),
            "There is none for images that need another system, such as `redis-sink`, nor for "
            "those of reduce vertices and side inputs. Bind the former to your own code.",
        ]
    )


def fields_of(section: str, folder: Path) -> str:
    """The table of a section's fields, such as ``source.http``, by names that begin in it."""
    start = f"`spec.vertices[].{section}."
    rows = [
        (f"`{path.removeprefix(start)}", *(linked_from(folder, text) for text in rest))
        for path, *rest in spec_fields(PipelineSpec, "", NO_EFFECT, FOLDED)
        if path.startswith(start)
    ]
    assert rows, f"the spec has no section {section}"
    return table(("field", "value", "default", "meaning"), rows)


LINK = re.compile(r"\](?!\(https:)\(([^)#]*)(#?[^)]*)\)")
"""A link in Markdown: its file, which may be left out, and its heading."""


def linked_from(folder: Path, text: str) -> str:
    """A text of the page about the spec with its links as they are from another folder."""

    def moved(link: re.Match[str]) -> str:
        target = os.path.normpath(REFERENCE / (link[1] or "spec.md"))
        return f"]({Path(os.path.relpath(target, folder)).as_posix()}{link[2]})"

    return LINK.sub(moved, text)


# --- modules ------------------------------------------------------------------------------------

LAYERS = (
    "domain", "engine", "usercode", "nats", "streams", "accounts", "web", "numaflow", "connectors",
    "spec", "runtime", "status", "spark", "deadletters", "client", "operations", "ui",
    "datasource", "testing", "cli",
)  # fmt: skip
"""The packages from left to right, as on the page about architecture."""


def modules() -> str:
    """Every module by its package, with the first paragraph of its docstring."""
    parts = [
        "# Modules",
        "Every module of `ebbflow`, with the first paragraph of its docstring. The packages stand "
        "in the order of the [layers](../architecture.md#layers): a package imports what stands "
        "before it.",
        "## The root",
        table(("module", "what it is for"), module_rows(PACKAGE.glob("*.py"), PACKAGE)),
    ]
    folders = {path.parent for path in PACKAGE.glob("*/__init__.py")}
    for folder in sorted(folders, key=lambda path: (layer_place(path.name), path.name)):
        rows = module_rows(folder.rglob("*.py"), folder)
        parts += [f"## {folder.name}", summary_of(folder / "__init__.py")]
        parts += [table(("module", "what it is for"), rows)]
    return "\n\n".join(parts)


def layer_place(name: str) -> int:
    """Where a package stands; one that is not in the list comes last."""
    return LAYERS.index(name) if name in LAYERS else len(LAYERS)


def module_rows(paths: Iterable[Path], folder: Path) -> Iterator[tuple[str, str]]:
    """Yields a row for each module; the module that a package itself is stands above the table."""
    for path in sorted(set(paths)):
        name = path.relative_to(folder).with_suffix("").as_posix().removesuffix("__init__")
        if name:
            yield f"`{name}`", summary_of(path)


def summary_of(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return tidy(docstring(SimpleNamespace(__doc__=text)).partition("\n\n")[0])


# --- promises and their tests -------------------------------------------------------------------

PROMISE = re.compile(r'^<a id="([\w-]+)"></a>\n#+ (.+)$', re.MULTILINE)
"""A promise on a page: its slug as an anchor, right above its heading."""


def guarantee_tests() -> str:
    """The promises in the order of their pages, each with the tests whose markers name it."""
    parts = [
        "# Tests of the guarantees",
        "Every promise with the tests that check it. A test says so by its marker, "
        '`@pytest.mark.guarantee("slug")`, where the slug is the anchor of the promise.',
    ]
    tests = marked_tests()
    for page in promise_pages():
        for slug, title in PROMISE.findall(page.read_text(encoding="utf-8")):
            back = f"../{page.relative_to(DOCS).as_posix()}#{slug}"
            links = [f"- [`{name}`](../../{place})" for name, place in tests.get(slug, ())]
            parts += [f'<a id="{slug}"></a>\n## {title}', f"[The promise]({back})"]
            parts += ["\n".join(links)]
    return "\n\n".join(parts)


def promise_pages() -> list[Path]:
    """The pages that may hold promises, the page of guarantees first."""
    return [DOCS / "guarantees.md", *sorted((DOCS / "guides").rglob("*.md"))]


def promised() -> list[str]:
    """The slugs of all promises."""
    return [
        slug
        for page in promise_pages()
        for slug, _ in PROMISE.findall(page.read_text(encoding="utf-8"))
    ]


def marked_tests() -> dict[str, list[tuple[str, str]]]:
    """The tests that check each promise by its slug, each with its file, sorted by name."""
    tests: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        place = path.relative_to(TESTS.parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for slug in marked_with(node):
                    tests.setdefault(slug, []).append((node.name, place))
    return {slug: sorted(named) for slug, named in tests.items()}


def marked_with(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The slugs in a test's ``@pytest.mark.guarantee(...)``."""
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == (
            "pytest.mark.guarantee"
        ):
            yield from (ast.literal_eval(argument) for argument in decorator.args)


# --- writing ------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written() -> dict[Path, str]:
    """Every file that is made here, as a whole or in part."""
    return guides() | {REFERENCE / name: text for name, text in pages().items()}


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for path, text in written().items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(DOCS).as_posix())
    if stale:
        print(f"not up to date: {', '.join(stale)}; run: python docs/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
