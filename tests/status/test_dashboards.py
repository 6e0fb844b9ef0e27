"""The dashboard and the alerts query only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ebbflow.status.metrics import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
LABELS = {
    name: {*metric.labels, "le"}
    for metric in METRICS
    for name in (
        [f"{metric.name}_bucket", f"{metric.name}_sum", f"{metric.name}_count"]
        if metric.kind == "histogram"
        else [metric.full_name]
    )
}


def dashboard_queries() -> Iterator[str]:
    board = json.loads((DEPLOY / "grafana" / "ebbflow.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["definition"] for variable in board["templating"]["list"][1:])


def alert_queries() -> Iterator[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


QUERIES = sorted({*dashboard_queries(), *alert_queries()})


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_only_existing_metrics_and_labels(query: str) -> None:
    selectors = re.findall(r"(\w+)\{(.*?)\}", query)

    assert selectors
    for name, matchers in selectors:
        assert name in LABELS
        assert {*re.findall(r"(\w+)\s*=", matchers)} <= LABELS[name]
    grouped = {label for by in re.findall(r"by \((.*?)\)", query) for label in by.split(", ")}
    assert all(grouped <= LABELS[name] for name, _ in selectors)
    # A name without braces would have slipped through above.
    assert not {*re.findall(r"\b(?:ebbflow|forwarder|monovtx|vertex|pipeline)_\w+", query)} - {
        name for name, _ in selectors
    }


def test_panels_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana" / "ebbflow.json").read_text())
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
