"""``ebbflow demo``: run the orders pipeline, then count the orders to see whether any is missing.

The pipeline has customers that become known late, a store that goes down, and orders that the store
rejects. The command writes the pipeline and its user code into the state folder, where users can
read and change them, and runs it as ``ebbflow run`` does. Then it reads the store and the dead
letters: every order that the source made must be in one of the two. Only the command line imports
it. Start with ``pipeline.yaml``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli import run
from ebbflow.cli.options import ServerOptions
from ebbflow.domain.errors import EbbflowError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ebbflow.deadletters import StoredLetter


_FILES = ("pipeline.yaml", "steps.py")
_PIPELINE = "orders"
_STATE = Path(".ebbflow/demo")
_ORDERS = 3000
_SAMPLES = 2


@dataclass(frozen=True)
class Orders:
    """The number of orders that the source made, those in the store, and the dead letters."""

    made: int
    stored: set[int]
    letters: Sequence[StoredLetter]

    @property
    def dead(self) -> set[int]:
        """The numbers of the dead letters."""
        # An id is the path of a message and begins with the order number: in-17/in/enrich.
        return {
            int(stored.letter.id.partition("/")[0].rpartition("-")[2]) for stored in self.letters
        }

    @property
    def missing(self) -> set[int]:
        """The numbers of orders that are in neither place."""
        return set(range(self.made)) - self.stored - self.dead

    @property
    def adds_up(self) -> bool:
        """Whether each order is in exactly one of the two places."""
        return not self.missing and self.made == len(self.stored) + len(self.letters)


def demo(
    orders: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="Make this many orders.")
    ] = _ORDERS,
    state: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Keep the pipeline, its data and logs here."),
    ] = _STATE,
) -> None:
    """Run a real pipeline for about a minute, then check that no message is missing."""
    from ebbflow.status.terminal import console_for

    console = console_for(sys.stdout)
    database = _clear_store(state)
    spec = _write_pipeline(orders, state)
    # The demo uses its own server and its own customers, whatever the environment sets.
    for name in ("EBBFLOW_NATS_URL", "CUSTOMERS"):
        os.environ.pop(name, None)
    os.environ["ORDERS_DB"] = str(database.resolve())
    command = f"ebbflow run {_typed(spec)} --drain --fresh --timeout 5m --state {_quoted(state)}"
    console.print(f"$ {command}\n", markup=False, soft_wrap=True)
    server = ServerOptions(state)
    flags = run.RunFlags(spec, drain=True, fresh=True, timeout="5m", server=server)
    if run.run_and_report(flags).ended != "drained":
        console.print("\nThe demo was stopped before its end. Start it again: ebbflow demo")
        return
    _report(console, _count_orders(orders, state, database), spec, state)


def _clear_store(state: Path) -> Path:
    """Deletes the store of an earlier demo, but not while one is running; returns its path."""
    from ebbflow.nats.embedded import StateFolder

    folder = StateFolder(state)
    folder.acquire()
    database = state / "orders.db"
    database.unlink(missing_ok=True)
    folder.release()
    return database


def _write_pipeline(orders: int, state: Path) -> Path:
    """Writes the pipeline and its user code where they can be read; returns the pipeline's file."""
    folder = state / "pipeline"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        text = text.replace(f"messages: {_ORDERS}", f"messages: {orders}")
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "pipeline.yaml"


def _count_orders(made: int, state: Path, database: Path) -> Orders:
    from ebbflow.deadletters import DeadLetters

    with sqlite3.connect(database) as connection:
        stored = {number for (number,) in connection.execute("SELECT number FROM orders")}
    with DeadLetters.open(_PIPELINE, state=state) as letters:
        return Orders(made, stored, tuple(letters.list()))


# --- the report ---------------------------------------------------------------------------------


def _report(console: Console, orders: Orders, spec: Path, state: Path) -> None:
    console.print("", _totals(orders), _samples(orders), sep="\n")
    if not orders.adds_up:
        missing = ", ".join(map(str, sorted(orders.missing)[:20]))
        raise EbbflowError(f"The demo's counts do not match; missing orders: {missing or 'none'}.")
    console.print("Every order is in the store or among the dead letters.", style="bold")
    for purpose, command in _next_commands(spec, state):
        console.print(f"\n# {purpose}\n{command}", markup=False, soft_wrap=True)


def _totals(orders: Orders) -> Table:
    from rich.table import Table

    table = Table("orders", title="Where every order is", title_justify="left")
    table.add_column("number", justify="right")
    table.add_row("made by the source", f"{orders.made:,}", end_section=True)
    table.add_row("in the store", f"{len(orders.stored):,}")
    table.add_row("dead letters", f"{len(orders.letters):,}", end_section=True)
    table.add_row("missing", f"{len(orders.missing):,}")
    return table


def _samples(orders: Orders) -> Table:
    """Returns a table of a few dead letters of each vertex."""
    from rich.table import Table

    table = Table("id", "deliveries", "reason", "error", title="Some dead letters")
    table.title_justify = "left"
    for vertex in dict.fromkeys(stored.letter.vertex for stored in orders.letters):
        letters = [stored.letter for stored in orders.letters if stored.letter.vertex == vertex]
        for letter in letters[:_SAMPLES]:
            table.add_row(letter.id, str(letter.deliveries), letter.reason, letter.error)
    return table


def _next_commands(spec: Path, state: Path) -> list[tuple[str, str]]:
    """Returns the commands to try next, each with its purpose."""
    ebbflow, where = _program(), f"--state {_quoted(state)}"
    store = "" if state == _STATE else f"ORDERS_DB={_quoted(state / 'orders.db')} "
    return [
        ("List all dead letters", f"{ebbflow} dlq list {_PIPELINE} {where}"),
        ("Show everything about one", f"{ebbflow} dlq show {_PIPELINE} 1 {where}"),
        (
            "Send those without a customer back",
            f"{ebbflow} dlq replay {_PIPELINE} --vertex enrich {where}",
        ),
        (
            "Then let them through, with every customer known",
            f"{store}CUSTOMERS=all {ebbflow} run {_typed(spec)} {where} --drain",
        ),
        ("Read the pipeline and its user code", f"ls {_quoted(spec.parent)}"),
    ]


def _program() -> str:
    """Returns the command as the user has to type it here."""
    installed = Path(sys.executable).with_name("ebbflow")
    on_path = shutil.which("ebbflow")
    same = on_path is not None and Path(on_path).resolve() == installed.resolve()
    return "ebbflow" if same else _typed(installed)


def _typed(path: Path) -> str:
    """Returns the path as the user would type it here."""
    relative = os.path.relpath(path)
    return _quoted(path) if relative.startswith("..") else shlex.quote(relative)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
