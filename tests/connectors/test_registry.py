"""The registry of connectors: every folder is in it, and plans are light enough for workers."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, StrictStr

import ebbflow
import ebbflow.connectors
from ebbflow.connectors.base import ConnectorSection, Settings, SinkSection, sink
from ebbflow.connectors.registry import SINKS, SOURCES
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.schema.secrets import SecretRef
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans
from ebbflow.spec.sections import SinkTarget, SourceSpec

NATS = {"url": "nats://localhost"}
PULSAR = {"serverAddr": "pulsar://127.0.0.1:1", "topic": "orders"}
POSTGRES = {"url": "postgresql://127.0.0.1:1/shop", "table": "orders"}
KAFKA = {"brokers": ["localhost:9092"], "topic": "t"}
SQS = {"awsRegion": "eu-west-1", "queueName": "q"}
CLIENTS = {
    "kafka": "confluent_kafka",
    "postgres": "psycopg",
    "pulsar": "pulsar",
    "sqs": "boto3",
    "pubsub": "google.pubsub_v1",
}
SAMPLE_SOURCES: dict[str, dict[str, Any]] = {
    "generator": {},
    "udsource": {"python": "tests.connectors.user_code.queue:Queue"},
    "http": {},
    "jetstream": NATS | {"stream": "S"},
    "nats": NATS | {"subject": "s"},
    "kafka": KAFKA,
    "postgres": POSTGRES,
    "pulsar": PULSAR,
    "sqs": SQS,
    "pubsub": {"project": "shop", "subscription": "orders"},
    "spark": {"format": "rate"},
    "serving": {},
}
SAMPLE_SINKS: dict[str, dict[str, Any]] = {
    "log": {},
    "blackhole": {},
    "serve": {},
    "udsink": {"python": "tests.connectors.user_code.queue:Queue"},
    "http": {"url": "http://localhost"},
    "file": {"path": "lines.txt"},
    "jetstream": NATS | {"subject": "s"},
    "nats": NATS | {"subject": "s"},
    "kafka": KAFKA,
    "postgres": POSTGRES,
    "pulsar": PULSAR,
    "sqs": SQS,
    "pubsub": {"project": "shop", "topic": "orders"},
    "spark": {"format": "noop"},
}


def test_every_connector_folder_registers_the_sections_of_its_spec() -> None:
    kinds = [*SOURCES.values(), *SINKS.values()]
    registered = {kind.section.__module__ for kind in kinds}
    folder = Path(ebbflow.connectors.__file__).parent
    files = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    defining = [path for path, text in files.items() if re.search(r"^@(source|sink)\(", text, re.M)]
    modules = {".".join(path.relative_to(folder).with_suffix("").parts) for path in defining}
    assert registered == {f"ebbflow.connectors.{module}" for module in modules}
    assert {f"{path.parent.name}.spec" for path in folder.glob("*/spec.py")} <= modules


def test_every_kind_of_connector_has_a_sample() -> None:
    assert (SAMPLE_SOURCES.keys(), SAMPLE_SINKS.keys()) == (SOURCES.keys(), SINKS.keys())


WORKERS = """
import json, os, pickle, sys
import pyarrow  # as every worker has, and most of the time that one takes to start
while size := int(sys.stdin.buffer.readline() or 0):
    plan = sys.stdin.buffer.read(size)
    if (pid := os.fork()) == 0:
        pickle.loads(plan)
        print(json.dumps([*sys.modules]), flush=True)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        print("[]", flush=True)
"""
"""A process that is forked for each plan, as Spark's daemon is for each worker."""


@pytest.fixture(scope="module")
def loaded_with() -> Iterator[Callable[[object], set[str]]]:
    """The top-level packages that a worker has loaded after it has read a plan."""
    command = [sys.executable, "-c", WORKERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None

        def load(plan: object) -> set[str]:
            data = pickle.dumps(plan)
            daemon.stdin.write(b"%d\n" % len(data) + data)
            daemon.stdin.flush()
            loaded = {name.partition(".")[0] for name in json.loads(daemon.stdout.readline())}
            assert "ebbflow" in loaded, "the plan cannot be read"
            return loaded

        yield load


@pytest.mark.parametrize("kind", SOURCES)
def test_workers_load_a_source_plan_without_pydantic_httptools_and_pyspark(
    loaded_with: Callable[[object], set[str]], kind: str
) -> None:
    if kind in CLIENTS:
        pytest.importorskip(CLIENTS[kind])
    source = SourceSpec.model_validate({kind: SAMPLE_SOURCES[kind]})
    loaded = loaded_with(source.section.plan("pipeline", "vertex"))
    assert not loaded & {"pydantic", "httptools", "pyspark"}


@pytest.mark.parametrize("kind", SINKS)
def test_workers_load_a_sink_plan_without_pydantic_and_pyspark(
    loaded_with: Callable[[object], set[str]], kind: str
) -> None:
    if kind in CLIENTS:
        pytest.importorskip(CLIENTS[kind])
    sink = SinkTarget.model_validate({kind: SAMPLE_SINKS[kind]})
    loaded = loaded_with(sink.section.plan())
    assert not loaded & {"pydantic", "pyspark"}


def test_lint_imports_no_client() -> None:
    code = "import json, sys, ebbflow.spec.lint; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    clients = {"nats", "pyspark", "aiohttp", "httptools", *CLIENTS.values()}
    assert not loaded & clients


# --- settings for workers -----------------------------------------------------------------------


class Login(Section):
    """A user and a password."""

    user: StrictStr
    password: SecretRef


class Sample(ConnectorSection):
    """A section with a field of each kind that settings convert."""

    url: StrictStr
    timeout: fields.Wait = 1_500
    pause: fields.Millis | None = None
    login: Login | None = None
    headers: dict[str, str] = Field(default={})
    topics: tuple[StrictStr, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleSettings:
    url: str
    timeout: float
    pause: float | None = None


def test_settings_contain_secret_values_and_durations_in_seconds(monkeypatch, loaded_with) -> None:
    monkeypatch.setenv("PASSWORD", "sesame")
    login = {"user": "me", "password": {"env": "PASSWORD"}}
    section = Sample(url="x", pause="2s", login=login, headers={"a": "b"}, topics=("t",))
    settings = section.freeze("the sample sink", url="y")
    assert settings == Settings(
        timeout=1.5,
        pause=2.0,
        login=Settings(user="me", password=Secret("sesame")),
        headers=(("a", "b"),),
        topics=("t",),
        url="y",
    )
    assert "sesame" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert loaded_with(settings).isdisjoint({"pydantic"})
    assert section.freeze("it", SampleSettings) == SampleSettings("x", 1.5, 2.0)


def test_settings_are_immutable() -> None:
    settings = Sample(url="x").freeze("the sample sink")
    with pytest.raises(AttributeError, match="settings do not change; url cannot be set"):
        settings.url = "y"
    with pytest.raises(AttributeError, match="there is no setting uri"):
        _ = settings.uri


def test_a_missing_secret_is_reported_with_its_owner(monkeypatch) -> None:
    monkeypatch.delenv("PASSWORD", raising=False)
    section = Sample(url="x", login={"user": "me", "password": {"env": "PASSWORD"}})
    with pytest.raises(SetupError, match="the password of the login of the sample sink"):
        section.freeze("the sample sink")


def test_two_connectors_of_the_same_name_are_rejected_with_both_named() -> None:
    with pytest.raises(SetupError, match=r"Two sinks are called log: ebbflow\..* and tests\."):

        @sink("log")
        class _OtherLog(SinkSection):
            pass

    assert SINKS["log"].section.__module__.startswith("ebbflow.")


def test_a_pulled_source_registered_as_another_kind_is_rejected_with_a_correction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulled = SOURCES["kafka"]
    monkeypatch.setitem(SOURCES, "kafka", replace(pulled, returns=False))
    pipeline = ebbflow.Pipeline("p").source("in", ebbflow.connectors.Kafka(**KAFKA))
    spec = pipeline.sink("out", ebbflow.connectors.Log()).spec
    with pytest.raises(SetupError, match=r'Write @source\("kafka", returns=True\) above its'):
        make_plans(spec, Addresses(()), 1_000_000, None)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (RuntimeError("no plan"), "RuntimeError: no plan"),
        (SystemExit(7), "SystemExit: 7"),
        (None, "TypeError: plan() returned NoneType where a plan belongs"),
    ],
)
def test_a_connector_that_cannot_be_planned_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException | None, why: str
) -> None:
    def plan(self: Any, *arguments: Any) -> None:
        if fault is not None:
            raise fault

    log, generator = ebbflow.connectors.Log(), ebbflow.connectors.Generator()
    spec = ebbflow.Pipeline("p").source("in", generator).sink("out", log).spec
    for role, kind, table in (("sink", "log", SINKS), ("source", "generator", SOURCES)):
        with monkeypatch.context() as patched:
            patched.setattr(table[kind].section, "plan", plan)
            with pytest.raises(SetupError) as raised:
                make_plans(spec, Addresses(()), 1_000_000, None)
        assert raised.value.what == f"The {role} {kind} cannot be planned: {why}."
