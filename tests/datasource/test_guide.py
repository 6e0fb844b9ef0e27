"""The example of the guide, run with a real server and Spark, prints what the guide shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbflow.nats.locate import NATS_URL
from tests.datasource.conftest import Stream
from tests.docs.pages import ROOT, Page

GUIDE = Page(ROOT / "docs" / "guides" / "spark-data-source.md")


@pytest.mark.long
def test_the_example_prints_what_the_guide_shows(
    spark, link, url, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv(NATS_URL, url)
    orders = Stream(link, "ORDERS", subjects=["orders.*"])
    named = Stream(link, "NAMED", subjects=["named.*"])
    for customer, amount in ((1, 5), (2, 7), (1, 9)):
        order = json.dumps({"customer": customer, "amount": amount}).encode()
        link.run(link.client.jetstream().publish("orders.new", order))
    names: dict[str, Any] = {"__name__": "named_orders"}
    example = next(block for block in GUIDE.blocks if block.name == "named_orders.py")
    exec(compile(example.text, "named_orders.py", "exec"), names)

    names["main"](spark, str(tmp_path / "checkpoint"))

    expected = next(block.text for block in GUIDE.blocks if block.language == "text")
    assert capsys.readouterr().out.strip() == expected.strip()
    for stream in (orders, named):
        stream.remove()
