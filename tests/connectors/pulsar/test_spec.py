"""Pulsar in a spec: what is accepted, and what lint reports about the rest."""

from __future__ import annotations

import sys

import pytest

from ebbflow import Pipeline
from ebbflow.connectors import Pulsar
from ebbflow.domain.errors import SetupError

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {{name: shop}}
spec:
  vertices:
    - name: in
      source:
        pulsar:
          serverAddr: {address}
          topic: orders
          {source}
    - name: out
      sink:
        pulsar:
          serverAddr: pulsar://localhost:6650
          topic: persistent://shop/eu/done
          {sink}
  edges: [{{from: in, to: out}}]
"""


@pytest.fixture
def problems(problems_of):
    def lint(
        source="maxUnack: 10", sink="producerName: shop", address="pulsar+ssl://a:6651,b:6651"
    ):
        return problems_of(SPEC.format(source=source, sink=sink, address=address))

    return lint


def section(**fields):
    pulsar = Pulsar(server_addr="pulsar+ssl://b:1", topic="t", **fields)
    pipeline = Pipeline("shop").source("in", pulsar).sink("out", pulsar_sink())
    return pipeline.spec.vertex("in").source.pulsar


def pulsar_sink():
    return Pulsar(server_addr="pulsar://b:1", topic="t")


@pytest.mark.parametrize(
    "auth", ["token: {env: TOKEN}", "basicAuth: {username: {env: U}, password: {env: P}}"]
)
def test_numaflows_own_form_is_accepted(problems, auth):
    source = f"""consumerName: one
          subscriptionName: shop
          maxUnack: 1000
          deadLetterPolicy: {{topic: dead, maxRedelivery: 3}}
          auth: {{{auth}}}"""
    sink = f"""producerName: shop
          auth: {{{auth}}}"""
    assert problems(source, sink) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            "subscriptionType: exclusive",
            "11:29: EB104 'subscriptionType' must be 'shared' or 'keyShared', not 'exclusive'",
        ),
        ("maxUnack: 0", "11:21: EB104 'maxUnack' must be at least 1, not 0"),
        (
            "auth: {token: {env: A}, basicAuth: {username: {env: U}, password: {env: P}}}",
            "11:17: EB104 'auth': write exactly one of token, basicAuth",
        ),
        ("auth: {}", None),
        (
            "deadLetterPolicy: {topic: dead}",
            "11:29: EB102 'maxRedelivery' is missing",
        ),
        (
            "deadLetterPolicy: {topic: a b, maxRedelivery: 1}",
            "11:37: EB104 'topic': 'a b' is not a topic: write NAME, TENANT/NAMESPACE/NAME or "
            "persistent://…",
        ),
        ("subscription: a", "11:11: EB101 unknown field 'subscription'; did you mean "
         "'subscriptionType'?"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_position(problems, source, problem):
    assert problems(source) == ([problem] if problem else [])


def test_an_address_with_a_login_and_tls_without_a_tls_address_are_rejected(problems):
    assert problems(address="pulsar://me:sesame@a:6650") == [
        "9:23: EB104 'serverAddr': must be pulsar://HOST:PORT or pulsar+ssl://HOST:PORT, without a "
        "login"
    ]
    tls = "tls: {caCertSecret: {file: ca.pem}}"
    assert problems(sink=tls) == [
        "15:11: EB104 'pulsar': tls needs a serverAddr that begins with pulsar+ssl://"
    ]
    assert problems(source=tls) == []


def test_secrets_are_read_when_the_plan_is_made_and_never_shown(monkeypatch):
    pytest.importorskip("pulsar")
    monkeypatch.setenv("TOKEN", "wonderland")
    pulsar = section(auth={"token": {"env": "TOKEN"}}, max_unack=5)
    settings = pulsar.plan("shop", "in").code.args[0]
    assert settings.access.token.reveal() == "wonderland"
    assert (settings.subscription_name, settings.max_unack) == ("shop-in", 5)
    assert "wonderland" not in repr(settings) + repr(pulsar)
    monkeypatch.delenv("TOKEN")
    with pytest.raises(SetupError) as raised:
        pulsar.access()
    text = "The variable TOKEN is not set. It must hold the token for Pulsar."
    assert str(raised.value) == text


def test_a_missing_extra_is_reported_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pulsar", None)
    with pytest.raises(SetupError) as raised:
        section().plan("shop", "in")
    text = "Pulsar needs a package that is not installed. Run: pip install 'ebbflow[pulsar]'"
    assert str(raised.value) == text
