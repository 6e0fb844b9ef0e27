"""``ebbflow run`` of three vertices at low rates: what it costs, and how long a message takes.

A separate run for each rate, with its own JVM, workers and embedded server, all of which count.
A message is made by the generator, mapped, and noted down by the sink when it arrives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import wait_until
from benchmarks.latency import Latency
from benchmarks.ours import EBBFLOW
from benchmarks.start import Shares, memory_of, run_of, used_in
from benchmarks.user_code import NOTES

_SETTLED = 15.0
_SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {{name: trickle}}
spec:
  vertices:
    - {{name: in, source: {{generator: {{rpu: {rate}, duration: 1s, msgSize: 36}}}}}}
    - {{name: map, udf: {{python: "benchmarks.work:each"}}}}
    - {{name: sink, sink: {{udsink: {{python: "benchmarks.user_code:NotingLatency"}}}}}}
  edges:
    - {{from: in, to: map}}
    - {{from: map, to: sink}}
"""


@dataclass(frozen=True, slots=True)
class LowRate:
    """The cost of that many messages a second, and the milliseconds that they took.

    ``megabytes`` are the memory of all processes, those that they share counted once; ``None`` in
    figures from before it was measured.
    """

    rate: int
    messages: int
    p50: float
    p99: float
    shares: Shares
    megabytes: float | None = None


def at(folder: Path, rate: int, seconds: float) -> LowRate:
    """Measures for that many seconds, once everything has settled."""
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    with run_of(folder, _SPEC.format(rate=rate), {NOTES: str(notes)}) as process:
        wait_until(notes.exists)
        time.sleep(_SETTLED)
        began = time.time()
        shares = used_in(process, seconds)
        memory = memory_of(process)
    # Inspecting all processes takes a while on a busy machine; messages meanwhile do not count.
    ended = began + seconds
    took = [
        milliseconds
        for at, milliseconds in (map(float, line.split()) for line in notes.open(encoding="ascii"))
        if began <= at < ended
    ]
    found = Latency.of(EBBFLOW, rate, "three vertices", took)
    return LowRate(rate, found.messages, found.p50, found.p99, shares, memory)
