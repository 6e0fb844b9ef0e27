"""SQS in a spec: Numaflow's fields, what lint rejects, and logins that are never shown."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from ebbflow.connectors.sqs.spec import SqsSinkSpec, SqsSourceSpec
from ebbflow.domain.errors import SetupError

QUEUE = {"awsRegion": "eu-west-1", "queueName": "orders"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"queueName": "or ders"}, "'or ders' is not a queue"),
        ({"queueName": "x" * 81}, "is not a queue"),
        ({"awsRegion": ""}, "must not be empty"),
        ({"queueOwnerAWSAccountID": "12"}, "'12' is not an account of 12 digits"),
        ({"visibilityTimeout": 0}, "greater than or equal to 1"),
        ({"maxNumberOfMessages": 11}, "less than or equal to 10"),
        ({"waitTimeSeconds": 21}, "less than or equal to 20"),
        ({"accessKeyIdSecret": {"env": "ID"}}, "belong together"),
        ({"assumeRole": {"roleArn": "admin"}}, "'admin' is not a role's ARN"),
    ],
)
def test_lint_rejects_invalid_fields(fields, why):
    with pytest.raises(ValidationError) as refused:
        SqsSourceSpec.model_validate(QUEUE | fields)
    assert why in refused.value.errors()[0]["msg"]


def test_an_sqs_source_of_numaflow_is_valid_here():
    fields = QUEUE | {
        "queueOwnerAWSAccountID": "123456789012",
        "visibilityTimeout": 60,
        "maxNumberOfMessages": 5,
        "waitTimeSeconds": 10,
        "endpointUrl": "http://127.0.0.1:4566",
        "attributeNames": ["All"],
        "messageAttributeNames": ["shop"],
        "assumeRole": {
            "roleArn": "arn:aws:iam::123456789012:role/shop",
            "sessionName": "shop",
            "durationSeconds": 900,
            "externalID": "x",
            "policyArns": ["arn:aws:iam::aws:policy/AmazonSQSFullAccess"],
        },
    }
    pytest.importorskip("boto3")
    (settings,) = SqsSourceSpec.model_validate(fields).plan("shop", "in").code.args
    assert settings.visibility_timeout == 60
    assert settings.access.owner == "123456789012"
    assert settings.access.role.arguments() == {
        "RoleSessionName": "shop",
        "DurationSeconds": 900,
        "ExternalId": "x",
        "PolicyArns": [{"arn": "arn:aws:iam::aws:policy/AmazonSQSFullAccess"}],
    }


def test_an_access_key_is_read_when_a_run_begins_and_never_shown(monkeypatch):
    pytest.importorskip("boto3")
    monkeypatch.delenv("SHOP_KEY", raising=False)
    key = {"accessKeyIdSecret": {"env": "SHOP_ID"}, "secretAccessKeySecret": {"env": "SHOP_KEY"}}
    spec = SqsSinkSpec.model_validate(QUEUE | key)
    monkeypatch.setenv("SHOP_ID", "AKIASHOP")
    with pytest.raises(SetupError, match="The variable SHOP_KEY is not set"):
        spec.plan()
    monkeypatch.setenv("SHOP_KEY", "sesame")
    plan = pickle.loads(pickle.dumps(spec.plan()))
    assert "sesame" not in repr(plan)
    assert "AKIASHOP" not in repr(plan)
    client = plan.code.args[0].connect()
    assert client._request_signer._credentials.secret_key == "sesame"
    client.close()


def test_a_role_is_assumed_when_the_client_first_needs_it(monkeypatch):
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "shop")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    role = {"assumeRole": {"roleArn": "arn:aws:iam::123456789012:role/shop"}}
    client = SqsSinkSpec.model_validate(QUEUE | role).plan().code.args[0].connect()
    assert client._request_signer._credentials.method == "assume-role"
    client.close()
