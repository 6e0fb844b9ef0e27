"""A spec as text again: what it says, and nothing that is secret."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from ebbflow import Message, Pipeline
from ebbflow.spec.echo import HIDDEN, hide_secrets, to_document, to_yaml
from ebbflow.spec.lint import load

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


def test_secrets_that_were_written_into_a_spec_are_hidden(spec):
    text = to_yaml(spec)
    assert SECRET not in text
    assert SECRET not in to_yaml(spec, defaults=True)
    assert SECRET not in json.dumps(to_document(spec))
    env = to_document(spec)["spec"]["vertices"][1]["udf"]["container"]["env"]
    assert env == [
        {"name": "DB_PASSWORD", "value": HIDDEN},
        {
            "name": "DB_URL",
            "value": f"postgres://{HIDDEN}@db/orders?sslmode=on&password={HIDDEN}",
        },
        {"name": "MODE", "value": "quick"},
    ]


def test_where_secrets_are_is_shown(spec):
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
    ],
)
def test_options_that_hold_secrets_are_hidden(name, value):
    assert SECRET not in str(hide_secrets({"options": {name: value}}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("path", "data/in"), ("keys", ["a"]), ("topic", "tokens"), ("query", "select key from t")],
)
def test_other_options_are_shown(name, value):
    assert hide_secrets({"options": {name: value}}) == {"options": {name: value}}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda file: file.stem)
def test_what_is_echoed_is_the_same_pipeline(file, tmp_path):
    if file.name == "bindings.yaml":
        return
    spec = load(file, containers="docker")
    # Its code is looked for beside the file.
    again = shutil.copytree(file.parent, tmp_path / "again") / file.name
    again.write_text(to_yaml(spec))
    assert to_document(load(again, containers="docker")) == to_document(spec)
    again.write_text(to_yaml(spec, defaults=True))
    assert load(again, containers="docker").steps[0].name == spec.steps[0].name


def test_code_of_a_pipeline_from_python_is_named():
    def double(datum):
        return Message(datum.value * 2)

    pipeline = Pipeline("p").source("in", generator={"messages": 1}).map("m", double)
    document = yaml.safe_load(to_yaml(pipeline.sink("out", blackhole=True).spec))
    python = document["spec"]["vertices"][1]["udf"]["python"]
    assert python.endswith("test_code_of_a_pipeline_from_python_is_named.<locals>.double")
