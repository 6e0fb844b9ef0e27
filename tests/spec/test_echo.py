"""A spec as text again: all of it except its secrets."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Message, Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.spec.echo import HIDDEN, hide_secrets, to_document, to_yaml
from ebbflow.spec.kubernetes import MonoVertexFields, VertexFields
from ebbflow.spec.lint import load
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "hunter2"

SPEC = f"""
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {{name: keep}}
spec:
  vertices:
  - name: in
    source: {{generator: {{messages: 3, rpu: 5, duration: 2s}}}}
  - name: work
    udf:
      python: json:dumps
      container:
        image: here/there:1
        env:
        - {{name: DB_PASSWORD, value: {SECRET}}}
        - {{name: DB_URL, value: "postgres://me:{SECRET}@db/orders?sslmode=on&password={SECRET}"}}
        - {{name: MODE, value: quick}}
  - name: out
    sink:
      kafka:
        brokers: [a:9092]
        topic: t
        sasl:
          mechanism: PLAIN
          plain:
            userSecret: {{name: login, key: user}}
            passwordSecret: {{env: KAFKA_PASSWORD}}
  edges:
  - {{from: in, to: work}}
  - {{from: work, to: out}}
"""


@pytest.fixture
def spec(tmp_path):
    file = tmp_path / "keep.yaml"
    file.write_text(SPEC)
    return load(file)


def test_secrets_written_into_a_spec_are_hidden(spec):
    text = to_yaml(spec)
    assert SECRET not in text
    assert SECRET not in to_yaml(spec, defaults=True)
    assert SECRET not in json.dumps(to_document(spec))
    env = to_document(spec)["spec"]["vertices"][1]["udf"]["container"]["env"]
    assert env == [
        {"name": "DB_PASSWORD", "value": HIDDEN},
        {"name": "DB_URL", "value": HIDDEN},
        {"name": "MODE", "value": HIDDEN},
    ]


ENV_NAMES = st.sampled_from(
    ["DB_PASSWORD", "CLIENT_SECRET", "client_secret", "clientSecret", "GITHUB_PAT", "MODE", "key",
     "env", "file", "name", "configMap", "x.secretKeyRef"]
)  # fmt: skip
VARIABLES = st.lists(ENV_NAMES, min_size=1, unique=True).map(
    lambda names: [{"name": name, "value": f"{SECRET}-{name}"} for name in names]
)
CONTAINERS = st.builds(
    lambda env, rest: {"env": env, **rest},
    VARIABLES,
    st.sampled_from([{}, {"command": ["./x"]}, {"image": "a:1"}, {"args": ["-v"]}]),
)
WITHOUT_EFFECT = sorted(
    {str(field.alias) for field in VertexFields.model_fields.values()}
    & {str(field.alias) for field in MonoVertexFields.model_fields.values()}
)


def function(container: Any) -> dict[str, Any]:
    return {"container": container, "python": "json:dumps"}


def annotations(container: Any) -> dict[str, Any]:
    applied = json.dumps({"spec": {"vertices": [{"udf": {"container": container}}]}})
    return {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied}}


def vertex_with(container: Any) -> dict[str, Any]:
    """A source, a map and sinks, with the container wherever there may be one."""
    other = {field: {"x": [container], "env": container["env"]} for field in WITHOUT_EFFECT}
    user_sink = {"udsink": function(container)}
    return other | {
        "source": {"udsource": function(container), "transformer": function(container)},
        "udf": function(container),
        "sink": {**user_sink, "fallback": user_sink, "onSuccess": user_sink},
    }


@pytest.mark.guarantee("secrets-are-in-no-text")
@given(container=CONTAINERS, defaults=st.booleans())
def test_no_value_of_a_variable_is_shown_wherever_it_was_written(container, defaults):
    whole = vertex_with(container)
    parts = {"source", "udf", "sink"}
    around = {name: value for name, value in whole.items() if name not in parts}
    mono = MonoVertexSpec.model_validate(
        {"metadata": {"name": "m", **annotations(container)}, "spec": whole}
    )
    pipeline = PipelineSpec.model_validate(
        {
            "metadata": {"name": "p", **annotations(container)},
            "spec": {
                "vertices": [{"name": part, part: whole[part], **around} for part in parts],
                "servingStore": function(container),
                "templates": {"job": {"containerTemplate": container}},
                "sideInputs": [{"name": "s", "container": container}],
            },
            "status": {"spec": container},
        }
    )
    for spec in (mono, pipeline):
        assert SECRET not in json.dumps(to_document(spec, defaults=defaults))
    shown = to_document(mono)["spec"]["udf"]["container"]["env"]
    assert shown == [{"name": each["name"], "value": HIDDEN} for each in container["env"]]


def test_references_to_secrets_are_shown(spec):
    plain = to_document(spec)["spec"]["vertices"][2]["sink"]["kafka"]["sasl"]["plain"]
    assert plain == {
        "userSecret": {"name": "login", "key": "user"},
        "passwordSecret": {"env": "KAFKA_PASSWORD"},
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", SECRET),
        ("fs.s3a.secret.key", SECRET),
        ("fs.azure.account.key.x", SECRET),
        ("Authorization", f"Bearer {SECRET}"),
        ("api_key", SECRET),
        ("token", SECRET),
        ("url", f"nats://user:{SECRET}@host:4222"),
        ("url", f"nats://{SECRET}@host"),
        ("url", f"jdbc:postgresql://host/db?user=me&password={SECRET}"),
        ("sasl.jaas.config", f'Login required username="me" password="{SECRET}";'),
        ("url", f"amqp://user:a@{SECRET}@host/x"),
        ("args", ["--user", "me", "--password", SECRET]),
        ("args", [f"--api-key={SECRET}"]),
        ("dsn", f"host=db user=me password='{SECRET}'"),
        ("args", ["-u", "me", "-p", SECRET]),
        ("args", ["-a", f"{SECRET}!"]),
        ("brokers", [f"me:{SECRET}@kafka:9092"]),
        ("brokers", f"kafka:9092,me:{SECRET}@kafka-2:9092"),
        ("client_secret", SECRET),
        ("X-Auth", SECRET),
        ("oauth", {"clientSecret": SECRET}),
        ("any", {"env": {"A": SECRET}, "key": SECRET}),
    ],
)
def test_options_that_hold_secrets_are_hidden(name, value):
    assert SECRET not in str(hide_secrets({"options": {name: value}}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", "data/in"),
        ("keys", ["a"]),
        ("topic", "tokens"),
        ("query", "select key from t"),
        ("args", ["-p", "8080:80", "-x", "text", "-a", "--flag"]),
        ("brokers", ["kafka-1:9092", "kafka-2:9092"]),
        ("mail", "me@example.com at 10:30"),
    ],
)
def test_options_without_secrets_are_shown(name, value):
    assert hide_secrets({"options": {name: value}}) == {"options": {name: value}}


def test_a_secret_flag_hides_only_the_argument_that_follows_it():
    args = ["--password", SECRET, f"--token={SECRET}", "-p", "80"]
    assert hide_secrets(args) == ["--password", HIDDEN, f"--token={HIDDEN}", "-p", "80"]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda file: file.stem)
def test_the_echoed_spec_is_the_same_pipeline(file, tmp_path):
    if file.name == "bindings.yaml":
        return
    spec = load(file, containers="docker")
    # The code is looked up next to the file.
    again = shutil.copytree(file.parent, tmp_path / "again") / file.name
    again.write_text(to_yaml(spec))
    assert to_document(load(again, containers="docker")) == to_document(spec)
    again.write_text(to_yaml(spec, defaults=True))
    assert load(again, containers="docker").steps[0].name == spec.steps[0].name


def test_code_of_a_pipeline_from_python_is_named():
    def double(datum):
        return Message(datum.value * 2)

    pipeline = Pipeline("p").source("in", Generator(messages=1)).map("m", double)
    document = yaml.safe_load(to_yaml(pipeline.sink("out", Blackhole()).spec))
    python = document["spec"]["vertices"][1]["udf"]["python"]
    assert python.endswith("test_code_of_a_pipeline_from_python_is_named.<locals>.double")
