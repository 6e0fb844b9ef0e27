"""The user code of the orders pipeline: a transformer, a map and a sink.

What goes wrong is decided by the number of the order, so every run tells the same story.
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from ebbflow import Datum, Message, NackOptions, Response, nack

DATABASE = Path(os.environ.get("ORDERS_DB", ".ebbflow/demo/orders.db"))
ALL_CUSTOMERS = os.environ.get("CUSTOMERS") == "all"
OUTAGE = NackOptions(delay="3s", reason="the store is down")


def make_order(datum: Datum) -> Message:
    """Turn the generator's number into an order. One in 300 has an amount that makes no sense."""
    number = json.loads(datum.value)["value"]
    amount = -1 if number % 300 == 150 else 5 + number % 95
    return message({"number": number, "customer": f"c-{number % 40}", "amount": amount})


def enrich(datum: Datum) -> Message:
    """Add the customer's name, or have the order come back while the customer is not known."""
    order = json.loads(datum.value)
    name = customer_name(order, datum.deliveries)
    if name is None:
        nack(delay="1500ms", max_deliveries=3, reason="the customer is not known yet")
    return message({**order, "name": name})


def customer_name(order: dict[str, Any], deliveries: int) -> str | None:
    """One customer in ten is known only after a while; the one of every 500th order, never."""
    late = order["number"] % 10 == 3 and deliveries < 3
    missing = order["number"] % 500 == 499 and not ALL_CUSTOMERS
    return None if late or missing else f"Customer {order['customer']}"


class OrderStore:
    """Writes orders to SQLite. An order that comes twice is stored once."""

    def open(self) -> None:
        """Connects once per worker, before the first call."""
        DATABASE.parent.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(DATABASE)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, name, amount)"
        )

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Writes a batch and answers for each order."""
        with self.database:  # one transaction: all is on disk before anything is answered
            return [self.write(datum) for datum in data]

    def write(self, datum: Datum) -> Response:
        """Writes one order, unless the store is down or the order makes no sense."""
        order = json.loads(datum.value)
        if order["number"] % 1000 // 100 == 6 and datum.deliveries < 3:
            return Response.nack(datum.id, OUTAGE)
        if order["amount"] < 0:
            return Response.failure(datum.id, f"order {order['number']} has a negative amount")
        row = (order["number"], order["name"], order["amount"])
        self.database.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", row)
        return Response.ok(datum.id)

    def close(self) -> None:
        """Disconnects when the pipeline stops."""
        self.database.close()


def message(order: dict[str, Any]) -> Message:
    """Returns the order as a message."""
    return Message(json.dumps(order).encode())
