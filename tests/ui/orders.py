"""A real pipeline for the tests of the web UI: the command runs it, with the web UI next to it.

Orders go through two maps into a store. What goes wrong is decided by the number of the order: one
waits ten minutes for its customer, some are nacked until they die, some make the code raise, some
have an amount that the store refuses. Each worker writes down which process it is.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Locator, Page

from tests.long_tests import are_long_tests_wanted
from tests.processes import command_of
from tests.waiting import until

SOON = 120_000
"""Milliseconds that a busy machine may take for what is immediate on others."""

RED_WITHIN = 5_000 if are_long_tests_wanted() else SOON
"""The same for what is promised within five seconds, which long tests hold the web UI to."""

SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata:
  name: orders
spec:
  vertices:
    - name: in
      source:
        generator: {rpu: 60, duration: 1s}
        transformer: {python: "steps:make_order"}
    - name: enrich
      udf: {python: "steps:enrich"}
      onError:
        backoff: {steps: 0}
    - name: price
      udf: {python: "steps:Price"}
    - name: store
      sink:
        udsink: {python: "steps:Store"}
    - name: notify
      sink:
        blackhole: {}
  edges:
    - {from: in, to: enrich}
    - {from: enrich, to: price}
    - {from: price, to: store}
    - {from: price, to: notify}
"""

STEPS = '''
"""The user code of the orders."""

import json
import os
from pathlib import Path

from ebbflow import Message, Response, nack

HERE = Path(__file__).parent
CUSTOMERS = {f"c-{number}": f"Customer {number}" for number in range(40) if number != 13}


def make_order(datum):
    number = json.loads(datum.value)["value"]
    amount = -1 if number % 100 == 50 else 5 + number % 95
    order = {"number": number, "customer": f"c-{number % 40}", "amount": amount}
    return Message(json.dumps(order).encode(), keys=[order["customer"]])


def enrich(datum):
    order = json.loads(datum.value)
    if order["number"] % 200 == 7:
        nack(delay="10m", reason="the customer is not known yet")
    if order["number"] % 200 == 27:
        nack(delay="10ms", max_deliveries=1, reason=f"order {order['number']} has no address")
    order["name"] = CUSTOMERS[order["customer"]]
    return Message(json.dumps(order).encode(), keys=list(datum.keys))


class Price:
    def open(self):
        (HERE / "worker-price").write_text(str(os.getpid()))

    def __call__(self, datum):
        return Message(datum.value, keys=list(datum.keys))


class Store:
    def open(self):
        self.file = open(HERE / "stored", "a")

    def close(self):
        self.file.close()

    def __call__(self, data):
        return [self.write(datum) for datum in data]

    def write(self, datum):
        order = json.loads(datum.value)
        if order["amount"] < 0:
            return Response.failure(datum.id, f"order {order['number']} has a negative amount")
        print(json.dumps(order), file=self.file, flush=True)
        return Response.ok(datum.id)
'''


class Orders:
    """The running pipeline, and the address of its web UI."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process
        self.address = self._find_address()

    def _find_address(self) -> str:
        pattern = re.compile(r"http://127\.0\.0\.1:\d+\S*")
        self.wait_until(lambda: bool(pattern.search(self.output())))
        match = pattern.search(self.output())
        assert match is not None
        return match.group().rstrip("/.")

    def output(self) -> str:
        return (self.folder / "log").read_text()

    def stored(self, number: int) -> list[dict[str, object]]:
        """What the store has written of an order."""
        path = self.folder / "stored"
        lines = path.read_text().splitlines() if path.exists() else []
        orders = [json.loads(line) for line in lines if line.endswith("}")]
        return [order for order in orders if order["number"] == number]

    def dead_letters(self, vertex: str) -> int:
        """How many dead letters a vertex has; none while the web UI does not answer yet."""
        counts = f"{self.address}/api/pipelines/orders/dead-letters/counts"
        with contextlib.suppress(OSError), urllib.request.urlopen(counts, timeout=20) as answer:
            return int(json.load(answer)["vertices"].get(vertex, 0))
        return 0

    def kill_worker(self, vertex: str) -> None:
        """Ends the process in which the code of a vertex runs, if it exists at the moment."""
        worker = int((self.folder / f"worker-{vertex}").read_text())
        with contextlib.suppress(psutil.NoSuchProcess):
            if "ebbflow.spark.daemon" in command_of(process := psutil.Process(worker)):
                process.kill()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        until(condition, seconds, self.process, self.output, every=0.05)


@contextmanager
def run_orders(folder: Path) -> Iterator[Orders]:
    """Runs the pipeline with its web UI until the context ends."""
    (folder / "pipeline.yaml").write_text(SPEC)
    (folder / "steps.py").write_text(STEPS)
    command = [sys.executable, "-m", "ebbflow", "run", "pipeline.yaml", "--plain"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--ui", "127.0.0.1:0"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Orders(folder, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def visit(page: Page, *parts: str) -> None:
    """Follows a link of the web UI, without reloading it."""
    page.evaluate("hash => { location.hash = hash }", "#/" + "/".join(["orders", *parts]))


def node(page: Page, vertex: str) -> Locator:
    """Returns a vertex in the graph."""
    return page.locator(f'.node[data-vertex="{vertex}"]')
