"""PostgreSQL through a Spark sink: one wrong row in a hundred does not keep the others out."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link, start_embedded

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
    - name: in
      source:
        generator: {messages: 500}
        transformer: {python: "orders:order"}
    - name: db
      onError: {backoff: {steps: 0}}
      sink:
        spark:
          format: jdbc
          options:
            url: jdbc:postgresql://127.0.0.1:{port}/postgres
            driver: org.postgresql.Driver
            dbtable: orders
            user: test
          secretOptions:
            password: {env: POSTGRES_PASSWORD}
          schema: id STRING, customer STRING, total INT
          columns:
            id: data.id
            customer: data.customer
            total: data.total
            ordered_at: event_time
  edges:
    - {from: in, to: db}
"""
ORDERS = """
import json

from ebbflow import Message


def order(datum):
    number = json.loads(datum.value)["value"]
    order = {"id": f"o{number}", "customer": "c1", "total": number % 9}
    match number:
        case 37:
            order["customer"] = "nobody"
        case 137:
            order["id"] = "o136"
        case 237:
            order["total"] = None
        case 337:
            order["total"] = -1
        case 437:
            order["id"] = "o" * 20
    return Message(json.dumps(order).encode())
"""
TABLES = """
CREATE TABLE customers (id text PRIMARY KEY);
INSERT INTO customers VALUES ('c1');
CREATE TABLE orders (
    id varchar(10) PRIMARY KEY,
    customer text REFERENCES customers,
    total int NOT NULL CHECK (total >= 0),
    ordered_at timestamptz
);
"""
ERRORS = {
    37: 'insert or update on table "orders" violates foreign key constraint '
    '"orders_customer_fkey" Detail: Key (customer)=(nobody) is not present in table "customers".',
    137: 'duplicate key value violates unique constraint "orders_pkey" Detail: Key (id)=(o136) '
    "already exists.",
    237: 'null value in column "total" of relation "orders" violates not-null constraint',
    337: 'new row for relation "orders" violates check constraint "orders_total_check"',
    437: "value too long for type character varying(10)",
}


@pytest.mark.guarantee("spark-vertices-lose-nothing")
@pytest.mark.long
def test_good_rows_are_in_the_table_and_bad_ones_are_dead_letters_with_the_databases_error(
    postgres, tmp_path
):
    postgres.ask(TABLES)
    (tmp_path / "orders.yaml").write_text(SPEC.replace("{port}", str(postgres.port)))
    (tmp_path / "orders.py").write_text(ORDERS)

    ended = subprocess.run(
        [
            *(sys.executable, "-m", "ebbflow", "run", "orders.yaml", "--drain", "--summary", "s"),
            *("--conf", f"spark.jars={postgres.driver}"),
        ],
        cwd=tmp_path,
        env=os.environ | {"POSTGRES_PASSWORD": postgres.password, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )

    assert ended.returncode == 0, ended.stdout
    good = [f"o{n}" for n in range(500) if n not in ERRORS]
    assert sorted(postgres.ask("SELECT id FROM orders")) == sorted(good)
    with start_embedded(tmp_path / ".ebbflow") as server, open_link(server) as link:
        letters = {one.letter.id: one.letter for one in DeadLetters(link, "orders").list()}
    assert set(letters) == {f"in-{number}/in" for number in ERRORS}
    for number, error in ERRORS.items():
        assert letters[f"in-{number}/in"].error.startswith(f"PSQLException: ERROR: {error}")
    counts = json.loads((tmp_path / "s").read_text())["vertices"]["db"]
    assert (counts["done"], counts["dead_lettered"]) == (495, 5)
    texts = [ended.stdout, *(p.read_text() for p in (tmp_path / ".ebbflow" / "logs").glob("*.log"))]
    assert not any(postgres.password in text for text in texts)
