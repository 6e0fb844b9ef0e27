"""The user code of the orders pipeline: a transformer, a map and a sink.

The number of an order decides what goes wrong with it, so every run has the same failures.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from ebbflow import Datum, Message, Nack, Response, Unavailable

DATABASE = Path(os.environ.get("ORDERS_DB", ".ebbflow/demo/orders.db"))
ALL_CUSTOMERS = os.environ.get("CUSTOMERS") == "all"
OUTAGE = 3.0  # seconds


def make_order(datum: Datum) -> Message:
    """Turn the generator's number into an order. One in 300 has a negative amount."""
    number = json.loads(datum.value)["value"]
    amount = -1 if number % 300 == 150 else 5 + number % 95
    return message({"number": number, "customer": f"c-{number % 40}", "amount": amount})


def enrich(datum: Datum) -> Message:
    """Add the customer's name, or nack the order while the customer is not known."""
    order = json.loads(datum.value)
    name = customer_name(order, datum.deliveries)
    if name is None:
        raise Nack("the customer is not known yet", delay="1500ms", max_deliveries=3)
    return message({**order, "name": name})


def customer_name(order: dict[str, Any], deliveries: int) -> str | None:
    """One customer in ten becomes known late; the customer of every 500th order never does."""
    late = order["number"] % 10 == 3 and deliveries < 3
    missing = order["number"] % 500 == 499 and not ALL_CUSTOMERS
    return None if late or missing else f"Customer {order['customer']}"


class OrderStore:
    """Writes orders to SQLite. An order that is delivered twice is stored once."""

    def open(self) -> None:
        """Connects once per worker, before the first call."""
        DATABASE.parent.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(DATABASE)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, name, amount)"
        )
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS outages (number INTEGER PRIMARY KEY, began)"
        )

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Writes a batch and responds to each order, unless the store is down."""
        orders = [json.loads(datum.value) for datum in data]
        self.begin_outages([order["number"] for order in orders if order["number"] % 1000 == 400])
        if self.is_down():
            raise Unavailable("the order store")
        with self.database:  # one transaction: everything is on disk before the sink responds
            return [self.write(datum.id, order) for datum, order in zip(data, orders, strict=True)]

    def begin_outages(self, numbers: list[int]) -> None:
        """Takes the store down when one of these orders arrives for the first time."""
        began = [(number, time.time()) for number in numbers]
        with self.database:
            self.database.executemany("INSERT OR IGNORE INTO outages VALUES (?, ?)", began)

    def is_down(self) -> bool:
        """Returns whether the latest outage still lasts."""
        (last,) = self.database.execute("SELECT max(began) FROM outages").fetchone()
        return last is not None and time.time() < last + OUTAGE

    def write(self, id: str, order: dict[str, Any]) -> Response:
        """Writes one order, or rejects a negative amount."""
        if order["amount"] < 0:
            return Response.failure(id, f"order {order['number']} has a negative amount")
        row = (order["number"], order["name"], order["amount"])
        self.database.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", row)
        return Response.ok(id)

    def close(self) -> None:
        """Disconnects when the pipeline stops."""
        self.database.close()


def message(order: dict[str, Any]) -> Message:
    """Returns the order as a message."""
    return Message(json.dumps(order).encode())
