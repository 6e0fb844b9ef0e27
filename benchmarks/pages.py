"""``python -m benchmarks.pages``: writes the figures of the last run into the documents.

A document has a table between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. What
stands there is made from ``benchmarks/results/bench.json``, and a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import contest, end_to_end, kafka, peers
from benchmarks.contest import Case
from benchmarks.figures import Figures, read
from benchmarks.ours import EBBFLOW
from benchmarks.tables import markdown, tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/bench.json"
PAGES = ("README.md", "docs/performance.md")
NOT_YET = "_Not measured yet._\n"
_BLOCK = re.compile(
    r"(<!-- figures: (.+?) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL
)  # fmt: skip
_MODES = {
    "unary": ", message by message",
    "batch": ", in batches",
    "columnar": ", columnar",
    "passed": ", frames not looked into",
    "": "",
}
_OWN_MODES = (EBBFLOW, peers.FLOOR)

Rows = Iterable[Sequence[str]]


def fill(text: str, figures: Figures) -> str:
    """Returns the document with its tables regenerated."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_table(block[2], figures)}\n{block[4]}", text)


def _table(name: str, figures: Figures) -> str:
    if name in _OWN:
        return _OWN[name](figures)
    return _of_the_run(name, figures)


def _of_the_run(name: str, figures: Figures) -> str:
    """Returns a table as the run has printed it, by the beginning of its title."""
    for table in tables(figures):
        if str(table.title).startswith(name):
            return markdown(table).split("\n", 2)[2]
    return NOT_YET


def _written(texts: Sequence[str], numbers: Sequence[str], rows: Rows) -> str:
    rules = [*("---" for _ in texts), *("---:" for _ in numbers)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ((*texts, *numbers), rules, *rows))


# --- between buffers ----------------------------------------------------------------------------


def _times(figures: Figures) -> dict[str, str]:
    """What a message takes for one hop at 1,000 messages a second, by contestant."""
    return {
        one.name: f"{one.p50:.1f} ms"
        for one in figures.latencies
        if (one.way, one.rate) == ("one hop", 1_000)
    }


def _who(case: Case) -> str:
    return case.name + (_MODES[case.mode] if case.name in _OWN_MODES else "")


def _between(figures: Figures) -> str:
    """All jobs between buffers, by size."""
    return _by_size(figures.of(*_BETWEEN), lambda case: (case.job, _who(case)), ("job", "who"))


_BETWEEN = (contest.HOP, contest.SINK, contest.MONO, contest.THREE)


# --- end to end ---------------------------------------------------------------------------------


def _whole(figures: Figures) -> str:
    """The whole job on single messages, by size."""
    cases = [case for case in figures.of(contest.END_TO_END) if case.mode != end_to_end.READS]
    return _by_size(cases, lambda case: (case.name,), ("end to end",))


def _by_size(
    cases: Sequence[Case], label: Callable[[Case], tuple[str, ...]], texts: Sequence[str]
) -> str:
    sizes = sorted({case.size for case in cases})
    numbers = (*(f"{size:,} B" for size in sizes), "a core second")
    lines: dict[tuple[str, ...], dict[int, Case]] = {}
    for case in cases:
        lines.setdefault(label(case), {})[case.size] = case
    rows = []
    for names, found in lines.items():
        rates = (f"{found[size].rate:,.0f}" if size in found else "" for size in sizes)
        rows.append((*names, *rates, f"{found[min(found)].per_core:,.0f}"))
    return _written(texts, numbers, rows) if rows else NOT_YET


# --- in short -----------------------------------------------------------------------------------


def _short(figures: Figures) -> str:
    """Ebbflow and the others in three rows, for readers who decide whether to read on."""
    whole = [case for case in figures.of(contest.END_TO_END) if case.mode != end_to_end.READS]
    rows = [
        _rates("JetStream to JetStream, messages a second", whole, end_to_end.MONO),
        _rates("Kafka to Kafka, messages a second", figures.of(contest.KAFKA), kafka.MONO),
        _hop_time(figures),
    ]
    return _written(("100-byte messages",), ("Ebbflow", "others"), rows)


def _rates(what: str, cases: Sequence[Case], ours: str) -> tuple[str, str, str]:
    """The rates of whole jobs with the smallest payload."""
    size = min((case.size for case in cases), default=0)
    rates = {
        case.name: f"{case.rate:,.0f}"
        for case in cases
        if case.size == size and case.mode != kafka.READS and case.name not in _SAME_CODE
    }
    own = rates.pop(ours, "")
    return what, own, "; ".join(f"{name} {rate}" for name, rate in rates.items())


# Not separate contestants: Ebbflow in another shape, and the least that the job can cost.
_SAME_CODE = (end_to_end.PIPELINE, end_to_end.BULK)


def _hop_time(figures: Figures) -> tuple[str, str, str]:
    took = _times(figures)
    own = took.pop(EBBFLOW, "")
    others = "; ".join(f"{name} {time}" for name, time in took.items())
    return "one hop at 1,000 messages a second, p50", own, others


_OWN: dict[str, Callable[[Figures], str]] = {
    "in short": _short,
    "between buffers, by size": _between,
    "end to end, by size": _whole,
}


def main() -> None:
    """Writes all documents."""
    figures = read(RESULTS)
    for page in PAGES:
        file = ROOT / page
        file.write_text(fill(file.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main()
