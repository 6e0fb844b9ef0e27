"""Pub/Sub in a spec: what lint rejects, and logins that are never shown."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from ebbflow.connectors.pubsub.spec import PubsubSinkSpec, PubsubSourceSpec
from ebbflow.domain.errors import SetupError

SOURCE = {"project": "shop", "subscription": "orders"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"project": ""}, "must not be empty"),
        ({"subscription": "a/b"}, "'a/b' is not the name of a topic or a subscription"),
        ({"subscription": "google-orders"}, "is not the name"),
        ({"lease": "5s"}, "must be from 10s to 600s, as ack deadlines are"),
        ({"lease": "11m"}, "must be from 10s to 600s"),
    ],
)
def test_lint_rejects_invalid_fields(fields, why):
    with pytest.raises(ValidationError) as refused:
        PubsubSourceSpec.model_validate(SOURCE | fields)
    assert why in refused.value.errors()[0]["msg"]


def test_the_key_of_a_service_account_is_never_shown(monkeypatch):
    pytest.importorskip("google.pubsub_v1")
    fields = {"project": "shop", "topic": "orders", "credentialsSecret": {"env": "SHOP_KEY"}}
    spec = PubsubSinkSpec.model_validate(fields)
    monkeypatch.delenv("SHOP_KEY", raising=False)
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    with pytest.raises(SetupError, match="The variable SHOP_KEY is not set"):
        spec.plan()
    monkeypatch.setenv("SHOP_KEY", '{"private_key": "sesame"}')
    plan = pickle.loads(pickle.dumps(spec.plan()))
    assert "sesame" not in repr(plan)
    with pytest.raises(SetupError, match="are not the key of a service account") as raised:
        plan.code().open()
    assert "sesame" not in str(raised.value)


def test_the_spec_or_the_environment_names_an_emulator(monkeypatch):
    pytest.importorskip("google.pubsub_v1")
    from ebbflow.connectors.pubsub.pubsub_client import PubsubAccess

    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:8085")
    assert PubsubAccess("shop", "topic", "orders")._emulator == "127.0.0.1:8085"
    assert PubsubAccess("shop", "topic", "orders", "http://127.0.0.1:1")._emulator == "127.0.0.1:1"
    assert PubsubAccess("shop", "topic", "orders", "pubsub.example.org:443")._emulator is None
