"""Postgres in a spec: what lint refuses, and what the start of a run finds out."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ebbflow.connectors.postgres.spec import PostgresSinkSpec, PostgresSourceSpec
from ebbflow.domain.errors import SetupError
from tests.ports import free_port

URL = "postgresql://shop@127.0.0.1:5432/shop"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"url": "mysql://db/shop"}, "must begin with postgresql://"),
        ({"url": "postgresql://me:sesame@db/shop"}, "must not hold a password"),
        ({"url": "postgresql://db/shop?password=sesame"}, "must not hold a password"),
        ({"columns": {"id": "$ids"}}, "$ids is not a fact of a message; the facts are $id, $value"),
        ({"conflictColumns": ["id"]}, "conflictColumns needs onConflict"),
        ({"onConflict": "replace"}, "'fail', 'ignore' or 'update'"),
    ],
)
def test_lint_refuses_what_cannot_be_meant(fields, why):
    with pytest.raises(ValidationError) as refused:
        PostgresSinkSpec.model_validate({"url": URL, "table": "orders"} | fields)
    assert why in refused.value.errors()[0]["msg"]


def test_a_run_ends_at_once_if_the_table_cannot_be_written(postgres):
    table = postgres.table("id integer")
    sink = {"url": postgres.url, "table": table, "columns": {"nr": "id"}}
    with pytest.raises(SetupError, match=f"The table {table} has no column nr"):
        PostgresSinkSpec.model_validate(sink).plan()
    with pytest.raises(SetupError, match=f"The table {table} has no primary key of one column"):
        PostgresSourceSpec(url=postgres.url, table=table).plan("jobs", "in")
    wrong = postgres.url.replace("/postgres", "/nowhere")
    with pytest.raises(SetupError, match='database "nowhere" does not exist'):
        PostgresSinkSpec(url=wrong, table=table).plan()


def test_a_run_begins_while_the_server_is_down():
    url = f"postgresql://shop@127.0.0.1:{free_port()}/shop"
    assert PostgresSinkSpec(url=url, table="orders").plan().mode == "columnar"


def test_a_password_is_read_when_a_run_begins(monkeypatch):
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    section = PostgresSinkSpec.model_validate(
        {"url": URL, "table": "orders", "passwordSecret": {"env": "SHOP_PASSWORD"}}
    )
    with pytest.raises(SetupError, match="the password for Postgres"):
        section.access()
    monkeypatch.setenv("SHOP_PASSWORD", "sesame")
    assert section.access().password.reveal() == "sesame"
