"""The second tutorial, followed with a real server: its files, posts, crash and outage."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.connectors.postgres.server import Postgres
from tests.docs.pages import PAGES, commands
from tests.docs.test_tutorial import printed
from tests.ports import free_port
from tests.waiting import until

PAGE = next(page for page in PAGES if page.path.name == "tutorial-2.md")
ORDERS = 5_001
ADDED = ', "c-9": "Alan"}'


class Shop:
    """The folder of the tutorial, its run and its database."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.folder = folder
        self.postgres = postgres
        self._port = free_port()
        self._run: subprocess.Popen[str] | None = None
        for block in PAGE.blocks:
            if block.name is not None:
                (folder / block.name).write_text(self.adapted(block.text), encoding="utf-8")
        (self.posts, self.commands) = self._of_the_page()
        postgres.ask((folder / "orders.sql").read_text(encoding="utf-8"))

    def adapted(self, text: str) -> str:
        """Returns a text of the page with the ports and the database of this test."""
        text = text.replace("postgresql://shop@127.0.0.1:5432/shop", self.postgres.url)
        return text.replace("8080", str(self._port))

    def _of_the_page(self) -> tuple[list[str], list[str]]:
        consoles = [block.text for block in PAGE.blocks if block.language == "console"]
        found = [command for text in consoles for command, _ in commands(text)]
        posts = [re.findall(r"-d '(.*?)'", one)[0] for one in found if one.startswith("curl")]
        return posts, [one for one in found if one.startswith("ebbflow")]

    def start(self) -> None:
        """Starts the run, and waits until it accepts posts."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._run = subprocess.Popen(
            [*self.command("run").split(), "--plain"],
            cwd=self.folder, env=os.environ | {"PATH": path}, text=True,
            stdout=subprocess.DEVNULL, stderr=(self.folder / "errors").open("w"),
            start_new_session=True,
        )  # fmt: skip
        until(self._listens, 120, self._run, (self.folder / "errors").read_text, every=0.2)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _curl(self, *arguments: str) -> int:
        address = f"http://localhost:{self._port}/vertices/in"
        return subprocess.call(
            ["curl", "-sS", "-f", "-o", "/dev/null", *arguments, address],
            cwd=self.folder, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def command(self, words: str) -> str:
        """The command of the page that contains these words."""
        return next(one for one in self.commands if words in one)

    def post(self, number: int) -> None:
        """Sends the order of the page with this number."""
        (body,) = [one for one in self.posts if json.loads(one)["number"] == number]
        assert self._curl("-d", body) == 0

    def post_many(self) -> None:
        """Sends all that ``make_orders.py`` prints."""
        done = printed(f"{sys.executable} make_orders.py", self.folder)
        (self.folder / "orders.jsonl").write_text(done, encoding="utf-8")
        kind = "content-type: application/x-ndjson"
        assert self._curl("--data-binary", "@orders.jsonl", "-H", kind) == 0

    def end(self, how: signal.Signals) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.send_signal(how)
            self._run.wait(120)
            self._run = None

    def stored(self) -> int:
        """How many orders the table has."""
        return int(self.postgres.ask("SELECT count(*) FROM orders")[0][0])

    def wait(self, holds: Callable[[], object]) -> None:
        """Waits for something that the run does."""
        until(holds, 120, self._run, (self.folder / "errors").read_text, every=0.2)

    def dead_letters(self) -> list[dict[str, object]]:
        """What ``dlq list`` shows."""
        text = printed(f"{self.command('dlq list')} --json", self.folder)
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def shop(tmp_path: Path, postgres: Postgres) -> Iterator[Shop]:
    made = Shop(tmp_path, postgres)
    try:
        yield made
    finally:
        made.end(signal.SIGTERM)
        postgres.ask("DROP TABLE orders")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_second_tutorial_works_as_described(shop: Shop) -> None:
    shop.start()
    shop.post(1)
    shop.wait(lambda: shop.stored() == 1)
    assert shop.postgres.ask("SELECT * FROM orders") == [(1, "c-1", "Ada", 20)]

    shop.post_many()
    shop.end(signal.SIGKILL)
    shop.start()
    shop.wait(lambda: shop.stored() == ORDERS)

    shop.postgres.stop()
    try:
        shop.post(5_002)
        status = shop.command("status")
        shop.wait(lambda: re.search(r"waits? |waiting", printed(status, shop.folder)))
    finally:
        shop.postgres.start()
    shop.wait(lambda: shop.stored() == ORDERS + 1)

    shop.post(5_003)
    shop.post(5_004)
    shop.wait(lambda: len(shop.dead_letters()) == 2)
    steps = shop.folder / "steps.py"
    steps.write_text(steps.read_text().replace('"Grace"}', f'"Grace"{ADDED}'))
    shop.end(signal.SIGINT)
    shop.start()
    printed(shop.command("--vertex enrich"), shop.folder)
    assert "1 dead letter" in printed(shop.command("--dry-run"), shop.folder)
    printed(shop.commands[-1], shop.folder)
    shop.wait(lambda: shop.stored() == ORDERS + 3)
    assert shop.dead_letters() == []
    assert shop.postgres.ask("SELECT amount FROM orders WHERE number = 5004") == [(8,)]
