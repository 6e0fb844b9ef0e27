"""The registry of connectors: every folder is in it, and plans are light enough for workers."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ebbflow.connectors
from ebbflow.connectors.registry import SINKS, SOURCES
from ebbflow.spec.sections import SinkTarget, SourceSpec

NATS = {"url": "nats://localhost"}
KAFKA = {"brokers": ["localhost:9092"], "topic": "t"}
GIVEN_SOURCES: dict[str, dict[str, Any]] = {
    "generator": {},
    "udsource": {"python": "tests.connectors.user_code.queue:Queue"},
    "http": {},
    "jetstream": NATS | {"stream": "S"},
    "nats": NATS | {"subject": "s"},
    "kafka": KAFKA,
    "spark": {"format": "rate"},
    "serving": {},
}
GIVEN_SINKS: dict[str, dict[str, Any]] = {
    "log": {},
    "blackhole": {},
    "serve": {},
    "udsink": {"python": "tests.connectors.user_code.queue:Queue"},
    "http": {"url": "http://localhost"},
    "file": {"path": "lines.txt"},
    "jetstream": NATS | {"subject": "s"},
    "nats": NATS | {"subject": "s"},
    "kafka": KAFKA,
    "spark": {"format": "noop"},
}


def test_every_folder_is_registered_by_the_sections_of_its_spec() -> None:
    kinds = [*SOURCES.values(), *SINKS.values()]
    registered = {kind.section.__module__ for kind in kinds}
    folders = Path(ebbflow.connectors.__file__).parent.glob("*/spec.py")
    assert registered == {f"ebbflow.connectors.{path.parent.name}.spec" for path in folders}


def test_the_samples_here_are_of_all_kinds() -> None:
    assert (GIVEN_SOURCES.keys(), GIVEN_SINKS.keys()) == (SOURCES.keys(), SINKS.keys())


def loaded_with(plan: object) -> set[str]:
    """The top-level packages that a worker has loaded when it has this plan."""
    code = (
        "import json, pickle, sys; pickle.load(sys.stdin.buffer); print(json.dumps([*sys.modules]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=pickle.dumps(plan), capture_output=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize("kind", SOURCES)
def test_workers_read_the_plan_of_a_source_without_the_spec_and_its_servers(kind: str) -> None:
    if kind == "kafka":
        pytest.importorskip("confluent_kafka")
    source = SourceSpec.model_validate({kind: GIVEN_SOURCES[kind]})
    loaded = loaded_with(source.section.plan("pipeline", "vertex"))
    assert not loaded & {"pydantic", "httptools", "pyspark"}


@pytest.mark.parametrize("kind", SINKS)
def test_workers_read_the_plan_of_a_sink_without_the_spec(kind: str) -> None:
    if kind == "kafka":
        pytest.importorskip("confluent_kafka")
    sink = SinkTarget.model_validate({kind: GIVEN_SINKS[kind]})
    loaded = loaded_with(sink.section.plan())
    assert not loaded & {"pydantic", "pyspark"}


def test_lint_imports_no_client() -> None:
    code = "import json, sys, ebbflow.spec.lint; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"nats", "pyspark", "aiohttp", "httptools", "confluent_kafka"}
