"""The pipeline under chaos, and the count of the outcomes of its messages."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from ebbflow.deadletters import DeadLetters
from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import count_by_vertex
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions

PIPELINE = Path(__file__).parent / "pipeline"
FORMS = {
    "pipeline": "orders.yaml", "mono": "mono.yaml", "storm": "storm.yaml", "chain": "chain.yaml"
}  # fmt: skip


def write_pipeline(folder: Path, form: str, messages: int, rate: int, replicas: int = 1) -> Path:
    """Copy the pipeline to the folder with another number of messages; return its specification."""
    text = (PIPELINE / FORMS[form]).read_text(encoding="utf-8")
    text = text.replace("rpu: 2000", f"rpu: {rate}")
    text = text.replace("messages: 50000", f"messages: {messages}")
    text = text.replace("\nspec:\n", f"\nspec:\n  interStepBuffer:\n    replicas: {replicas}\n")
    (folder / "chaos.yaml").write_text(text, encoding="utf-8")
    steps = (PIPELINE / "steps.py").read_text(encoding="utf-8")
    (folder / "steps.py").write_text(steps, encoding="utf-8")
    return folder / "chaos.yaml"


def allow_inline(spec: Path, chance: random.Random) -> None:
    """Change the specification so that each vertex may run inline or not, by chance."""
    text = re.sub(r" *inline: false\n", "", spec.read_text(encoding="utf-8"))
    names = [name for name in re.findall(r"- name: (\w+)", text) if chance.random() < 0.4]
    for name in names:
        text = text.replace(f"- name: {name}\n", f"- name: {name}\n      inline: false\n")
    spec.write_text(text, encoding="utf-8")


def written(folder: Path) -> int:
    """How much the sink has written so far."""
    return sum(path.stat().st_size for path in (folder / "journal").glob("*"))


@dataclass(frozen=True)
class Tally:
    """The outcomes of the messages."""

    messages: int
    kills: int
    arrived: int
    dead: int
    duplicates: int
    lost: list[int]
    wrong: list[str]

    def __str__(self) -> str:
        return (
            f"{self.messages} messages, {self.kills} kills: {self.arrived} arrived, "
            f"{self.dead} dead letters, {self.duplicates} duplicates, {len(self.lost)} lost"
            + "".join(f"\nwrong: {what}" for what in self.wrong)
        )


def count(folder: Path, messages: int, kills: int, link: Link, *, exact: bool = False) -> Tally:
    """Every number must be in the sink's journal, or once among the dead letters.

    With ``exact``, the totals of the vertices must be right as well.
    """
    journal = (folder / "journal").iterdir()
    numbers = Counter(int(line) for path in journal for line in path.read_text().split())
    letters = DeadLetters(link, "chaos").list()
    dead = Counter(json.loads(stored.letter.value)["value"] for stored in letters)
    lost = [n for n in range(messages) if n not in numbers and n not in dead]
    wrong = [f"{n} has {times} dead letters" for n, times in dead.items() if times > 1]
    if exact:
        wrong += compare_totals(messages, len(dead), link)
    duplicates = numbers.total() - len(numbers)
    return Tally(messages, kills, len(numbers), len(dead), duplicates, lost, wrong)


def compare_totals(messages: int, dead: int, link: Link) -> list[str]:
    """Return what does not add up, where user code decides the same on every replay."""
    positions = link.run(read_positions(link.client, Names("chaos")))
    totals = defaultdict(Counts, count_by_vertex(positions))
    facts = {
        "in: written": (totals["in"].written, messages),
        "work: done or dead": (totals["work"].done + totals["work"].dead_lettered, messages),
        "work: dead": (totals["work"].dead_lettered, dead),
    }
    behind = [name for name in ("check", "enrich", "store") if name in totals]
    facts |= {f"{name}: done": (totals[name].done, messages - dead) for name in behind}
    return [f"{what} {seen}, not {true}" for what, (seen, true) in facts.items() if seen != true]
