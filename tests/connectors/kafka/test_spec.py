"""Kafka in a spec: what is accepted, and what lint reports about the rest."""

from __future__ import annotations

import pytest

from ebbflow import Pipeline
from ebbflow.connectors import Kafka
from ebbflow.domain.errors import SetupError

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {{name: shop}}
spec:
  vertices:
    - name: in
      source:
        kafka:
          brokers: [localhost:9092]
          {source}
    - name: out
      sink:
        kafka:
          brokers: [localhost:9092]
          topic: done
          {sink}
  edges: [{{from: in, to: out}}]
"""


@pytest.fixture
def problems(problems_of):
    def lint(source="topic: orders", sink="setKey: true"):
        return problems_of(SPEC.format(source=source, sink=sink))

    return lint


def sections(topic="t", **fields):
    pipeline = Pipeline("shop").source("in", Kafka(brokers=["b:1"], topic=topic, **fields))
    return pipeline.sink("out", Kafka(brokers=["b:1"], topic="t")).spec.vertices


def test_numaflows_own_form_is_accepted(problems):
    source = """topic: orders, returns
          consumerGroup: shop
          kafkaVersion: 2.8.0
          config: |
            max.poll.interval.ms: 300000
            check.crcs: true
          tls: {caCertSecret: {file: ca.pem}}
          sasl:
            mechanism: SCRAM-SHA-512
            scramsha512:
              userSecret: {env: KAFKA_USER}
              passwordSecret: {env: KAFKA_PASSWORD}
              handshake: true"""
    assert problems(source) == []


def test_topics_and_settings_can_be_written_in_two_ways():
    lines = sections(topic="a, b", config="linger.ms: 5\nsocket.keepalive.enable: true")
    mapping = sections(topic=["a", "b"], config={"linger.ms": 5, "socket.keepalive.enable": True})
    assert lines == mapping
    kafka = lines[0].source.kafka
    assert kafka.topic == ("a", "b")
    assert kafka.config == {"linger.ms": "5", "socket.keepalive.enable": "true"}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("consumerGroup: x", "9:11: EB102 'topic' is missing"),
        (
            "topic: a b",
            "10:18: EB104 'topic[0]': 'a b' is not a topic: use at most 249 letters, digits, "
            "'.', '_' and '-'",
        ),
        ("topic: []", "10:18: EB104 'topic': must have at least one"),
        (
            "topic: t\n          config: 5",
            "11:19: EB103 'config': must be settings of librdkafka, as key: value lines",
        ),
        (
            "topic: t\n          config: {group.id: x}",
            "11:19: EB104 'config': group.id cannot be set here: write consumerGroup:",
        ),
        (
            "topic: t\n          config: {enable.auto.commit: true}",
            "11:19: EB104 'config': enable.auto.commit cannot be set here: Ebbflow's guarantees "
            "depend on it",
        ),
        (
            "topic: t\n          config: {delivery.report.only.error: false}",
            "11:19: EB104 'config': delivery.report.only.error cannot be set here: Ebbflow's "
            "guarantees depend on it",
        ),
        (
            "topic: t\n          sasl: {mechanism: plan}",
            "11:29: EB104 'mechanism' must be 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512', not "
            "'PLAN'",
        ),
        (
            "topic: t\n          sasl: {mechanism: GSSAPI, gssapi: {realm: a, serviceName: kafka}}",
            "11:17: EB901 'sasl': GSSAPI is not supported; log in with PLAIN, SCRAM-SHA-256 or "
            "SCRAM-SHA-512, or with a certificate in tls:",
        ),
        (
            "topic: t\n          sasl: {mechanism: OAUTHBEARER}",
            "11:17: EB901 'sasl': OAUTHBEARER is not supported; log in with PLAIN, SCRAM-SHA-256 "
            "or SCRAM-SHA-512, or with a certificate in tls:",
        ),
        (
            "topic: t\n          sasl: {oauth: {tokenEndpoint: 'http://a'}}",
            "11:17: EB901 'sasl': OAUTHBEARER is not supported; log in with PLAIN, SCRAM-SHA-256 "
            "or SCRAM-SHA-512, or with a certificate in tls:",
        ),
        (
            "topic: t\n          sasl: {mechanism: PLAIN}",
            "11:17: EB104 'sasl': mechanism PLAIN needs plain: with userSecret and "
            "passwordSecret, and no other section",
        ),
        (
            "topic: t\n          tls: {certSecret: {file: c.pem}}",
            "11:16: EB104 'tls': certSecret and keySecret belong together; give both or neither",
        ),
        (
            "topic: t\n          tls: {caCertSecret: {name: kafka}}",
            "11:31: EB109 'caCertSecret': one secret is in one place; write env: NAME, file: PATH, "
            "or name: SECRET with key: KEY",
        ),
    ],
)
def test_a_problem_is_reported_with_its_position(problems, source, problem):
    assert problems(source) == [problem]


def test_a_misspelt_field_is_reported(problems):
    assert problems(sink="topic2: x") == [
        "16:11: EB101 unknown field 'topic2'; did you mean 'topic'?"
    ]


def test_secrets_are_read_when_the_plan_is_made_and_never_shown(monkeypatch, tmp_path):
    (tmp_path / "ca.pem").write_text("CERTIFICATE\n")
    monkeypatch.setenv("KAFKA_USER", "alice")
    monkeypatch.setenv("KAFKA_PASSWORD", "wonderland")
    user = {"userSecret": {"env": "KAFKA_USER"}, "passwordSecret": {"env": "KAFKA_PASSWORD"}}
    sasl = {"mechanism": "PLAIN", "plain": user}
    tls = {"caCertSecret": {"file": str(tmp_path / "ca.pem")}}
    kafka = sections(sasl=sasl, tls=tls)[0].source.kafka

    access = kafka.access()

    settings = access.settings({}, {})
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.password"] == "wonderland"
    assert settings["ssl.ca.pem"] == "CERTIFICATE"
    assert "wonderland" not in repr(access) + str(access) + repr(kafka)
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(SetupError) as raised:
        kafka.access()
    text = "The variable KAFKA_PASSWORD is not set. It must hold the password for Kafka."
    assert str(raised.value) == text


def test_user_settings_override_defaults_but_not_what_the_guarantees_need():
    access = sections(config={"session.timeout.ms": 7000})[0].source.kafka.access()
    settings = access.settings({"session.timeout.ms": 1}, {"enable.auto.commit": False})
    assert settings["session.timeout.ms"] == "7000"
    assert settings["enable.auto.commit"] is False


def test_a_missing_extra_is_reported_with_the_command_to_install_it(monkeypatch):
    import sys

    kafka = sections()[0].source.kafka
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(SetupError) as raised:
        kafka.plan("records", "in")
    text = "Kafka needs a package that is not installed. Run: pip install 'ebbflow[kafka]'"
    assert str(raised.value) == text


ALONE = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: shop}
spec:
  partitions: 1
  source: {generator: {}}
  sink:
    kafka: {brokers: [a], topic: done, exactlyOnce: true}
"""


def test_an_exactly_once_sink_needs_to_be_the_only_sink_and_partition(problems_of):
    assert problems_of(ALONE) == []
    assert problems_of(ALONE.replace("partitions: 1", "partitions: 2")) == [
        "8:53: EB213 'exactlyOnce' needs a vertex with one partition; this one has 2"
    ]
    assert problems_of(f"{ALONE}    fallback: {{log: {{}}}}\n") == [
        "8:53: EB213 'exactlyOnce' is for the only sink of a vertex; this one has sink and fallback"
    ]
