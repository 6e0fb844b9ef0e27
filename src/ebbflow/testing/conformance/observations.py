"""Observations of a trial: every call of the transformer, every arrival at the pipeline's end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ebbflow.testing.conformance.journal import Journal
from ebbflow.testing.conformance.samples import calls_wanted, name_of
from ebbflow.testing.conformance.under_test import Sample
from ebbflow.testing.conformance.user_code import Arrival, Call


class Observations:
    """Calls and arrivals so far, by the names of their messages."""

    def __init__(self, calls: Path, arrivals: Path) -> None:
        self.calls_journal = Journal(calls)
        self.arrivals_journal = Journal(arrivals)
        self._calls: defaultdict[str, list[Call]] = defaultdict(list)
        self._arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)

    def _look(self) -> None:
        for entry in self.calls_journal.new():
            call = Call(*entry)
            self._calls[call.name].append(call)
        for entry in self.arrivals_journal.new():
            arrival = Arrival(*entry)
            self._arrivals[arrival.name].append(arrival)

    def calls(self, name: str) -> list[Call]:
        """Returns the calls with one message, in the order of their times."""
        self._look()
        return sorted(self._calls.get(name, ()), key=lambda call: call.at)

    def arrivals(self, name: str) -> list[Arrival]:
        """Returns the arrivals of one message at the end of the pipeline."""
        self._look()
        return self._arrivals.get(name, [])

    def uncalled(self, group: Iterable[Sample]) -> int:
        """Returns how many the transformer has not got yet."""
        self._look()
        return sum(name_of(sample) not in self._calls for sample in group)

    def left(self, group: Iterable[Sample]) -> int:
        """Returns how many have not ended: they have neither arrived nor had their last call."""
        self._look()
        return sum(not self._is_over(name_of(sample)) for sample in group)

    def _is_over(self, name: str) -> bool:
        if (wanted := calls_wanted(name)) is None:
            return name in self._arrivals
        return any(call.deliveries >= wanted for call in self._calls.get(name, ()))
