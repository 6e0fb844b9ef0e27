"""User code between the generator and a table: some rows are bad, some have to be redelivered."""

from __future__ import annotations

import json

from ebbflow import Message, nack


def work(datum):
    """Make a row; one in a thousand breaks a check of the table, one in fifty is nacked once."""
    number = json.loads(datum.value)["value"]
    if number % 50 == 7 and datum.deliveries == 1:
        nack(delay="100ms", reason="not now")
    amount = -1 if number % 1000 == 0 else number
    return Message(json.dumps({"id": number, "amount": amount}).encode())
