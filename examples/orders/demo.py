"""``make demo``: run the orders pipeline, then count the orders to see whether any is missing.

    python -m examples.orders.demo [--orders N] [--state DIR]

The pipeline is run by the ``ebbflow`` command itself. Afterwards the store and the dead letters
are read here, and every order that the source made must be in one of the two: exit code 1 if not.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ebbflow.cli.main import app
from ebbflow.cli.run import ExitCode
from ebbflow.deadletters import DeadLetters, StoredLetter
from ebbflow.display import console_for
from ebbflow.errors import EbbflowError
from ebbflow.nats.embedded import StateFolder
from ebbflow.nats.locate import open_link_for_run
from ebbflow.spec.lint import load

PIPELINE = Path(__file__).parent / "pipeline.yaml"
STATE = Path(".ebbflow/demo")
ORDERS = 3000
SAMPLES = 2


@dataclass(frozen=True)
class Tally:
    """Where the orders are, each by its number."""

    made: int
    stored: set[int]
    letters: Sequence[StoredLetter]

    @property
    def dead(self) -> set[int]:
        # An id is the way a message took, and begins with the number: in-17/in/enrich.
        return {int(one.letter.id.partition("/")[0].rpartition("-")[2]) for one in self.letters}

    @property
    def missing(self) -> set[int]:
        return set(range(self.made)) - self.stored - self.dead

    @property
    def adds_up(self) -> bool:
        return not self.missing and self.made == len(self.stored) + len(self.letters)


def main() -> int:
    try:
        return demonstrated(parsed())
    except EbbflowError as error:
        print(f"demo: {error}", file=sys.stderr)
        return ExitCode.NOT_READY


def demonstrated(arguments: argparse.Namespace) -> int:
    console = console_for(sys.stdout)
    database = emptied(arguments.state)
    # Its own server and its own story, whatever the environment says.
    for name in ("EBBFLOW_NATS_URL", "CUSTOMERS"):
        os.environ.pop(name, None)
    os.environ["ORDERS_DB"] = str(database.resolve())
    spec = prepared(arguments.orders, arguments.state)
    options = ["--drain", "--fresh", "--timeout", "110s", "--state", str(arguments.state)]
    command = ["run", shown(spec), *options]
    console.print(f"$ ebbflow {shlex.join(command)}\n", markup=False, soft_wrap=True)
    if code := app(command, standalone_mode=False):
        return int(code)
    tally = counted(arguments.orders, arguments.state, database)
    report(console, tally, spec, arguments.state)
    return 0 if tally.adds_up else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.orders.demo")
    parser.add_argument("--orders", type=int, default=ORDERS, help="how many (%(default)s)")
    parser.add_argument("--state", type=Path, default=STATE, help="folder (%(default)s)")
    return parser.parse_args()


def emptied(state: Path) -> Path:
    """Where the store is to be, without that of an earlier demo; not while one is running."""
    folder = StateFolder(state)
    folder.acquire()
    database = state / "orders.db"
    database.unlink(missing_ok=True)
    folder.release()
    return database


def prepared(orders: int, state: Path) -> Path:
    """The pipeline, or a copy of it that makes another number of orders."""
    if orders == ORDERS:
        return PIPELINE
    copy = state / "pipeline"
    copy.mkdir(parents=True, exist_ok=True)
    shutil.copy(PIPELINE.with_name("steps.py"), copy)
    text = PIPELINE.read_text(encoding="utf-8")
    text = text.replace(f"messages: {ORDERS}", f"messages: {orders}")
    (copy / "pipeline.yaml").write_text(text, encoding="utf-8")
    return copy / "pipeline.yaml"


def shown(path: Path) -> str:
    """The path as one would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def counted(made: int, state: Path, database: Path) -> Tally:
    with sqlite3.connect(database) as connection:
        stored = {number for (number,) in connection.execute("SELECT number FROM orders")}
    with open_link_for_run(state, None) as link:
        letters = tuple(DeadLetters(link, load(PIPELINE).name).list())
    return Tally(made, stored, letters)


def report(console: Console, tally: Tally, spec: Path, state: Path) -> None:
    console.print("", totals(tally), samples(tally), sep="\n")
    if tally.adds_up:
        console.print("Every order is in the store or among the dead letters.", style="bold")
    else:
        console.print(f"Does not add up; missing: {sorted(tally.missing)[:20]}", style="bold red")
    ebbflow = shown(Path(sys.executable).with_name("ebbflow"))
    where = f"--state {shlex.quote(str(state))}"
    store = "" if state == STATE else f"ORDERS_DB={shlex.quote(str(state / 'orders.db'))} "
    commands = [
        ("See all dead letters", f"{ebbflow} dlq list orders {where}"),
        ("See all about one", f"{ebbflow} dlq show orders 1 {where}"),
        (
            "Send those without a customer back",
            f"{ebbflow} dlq replay orders --vertex enrich {where}",
        ),
        (
            "Then let them through, with every customer known",
            f"{store}CUSTOMERS=all {ebbflow} run {shlex.quote(shown(spec))} {where} --drain",
        ),
    ]
    for what, command in commands:
        console.print(f"\n# {what}\n{command}", markup=False, soft_wrap=True)


def totals(tally: Tally) -> Table:
    table = Table("orders", title="Where every order is", title_justify="left")
    table.add_column("number", justify="right")
    table.add_row("made by the source", f"{tally.made:,}", end_section=True)
    table.add_row("in the store", f"{len(tally.stored):,}")
    table.add_row("dead letters", f"{len(tally.letters):,}", end_section=True)
    table.add_row("missing", f"{len(tally.missing):,}")
    return table


def samples(tally: Tally) -> Table:
    """A few dead letters of each vertex."""
    table = Table("id", "deliveries", "reason", "error", title="Some dead letters")
    table.title_justify = "left"
    for vertex in dict.fromkeys(one.letter.vertex for one in tally.letters):
        letters = [one.letter for one in tally.letters if one.letter.vertex == vertex]
        for letter in letters[:SAMPLES]:
            table.add_row(letter.id, str(letter.deliveries), letter.reason, letter.error)
    return table


if __name__ == "__main__":
    sys.exit(main())
