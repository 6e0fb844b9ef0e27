"""Kill processes of a pipeline that reads from Pulsar with -9, at random points, and count.

At each point two Python processes are killed, readers or workers, and a moment
later the driver alone or all processes. Every message must be in the sink's journal, and nothing of
the subscription may be left at the end. Duplicate messages are allowed and counted. The
seed is printed.

    python -m tests.chaos.pulsar_kill --records 100000 --kills 2 [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.chaos.kafka_kill import GROUP, KafkaChaos
from tests.processes import command_of, family_of
from tests.waiting import until

_APART = 3.0


class PulsarChaos(KafkaChaos):
    """A topic, and a pipeline in its own folder that is killed and restarted."""

    spec = "pulses.yaml"
    placeholder = "pulsar://127.0.0.1:6650"
    partitions = 3

    def _kill(self, process: subprocess.Popen[bytes]) -> str:
        killed = 0
        for _ in range(2):
            # Ordered by process id, so that a seed is as reproducible as possible.
            family = sorted(family_of(process.pid), key=lambda each: each.pid)
            if victims := [each for each in family if "python" in "".join(command_of(each)[:1])]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._random.choice(victims).kill()
                    killed += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_APART)
        if process.poll() is not None:
            return f"{killed} of its processes"
        return f"{killed} of its processes, then {super()._kill(process)},"

    def _lag(self) -> dict[int, int]:
        with contextlib.suppress(AssertionError):  # the client sends its last acks in groups
            until(lambda: self._broker.backlog(self._topic, GROUP) == 0, 20)
        return {0: self._broker.backlog(self._topic, GROUP)}


def main() -> None:
    """Run it as a command; exit 1 when anything was lost or is left."""
    from tests.connectors.pulsar.broker import PulsarBroker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as name:
        folder = Path(name)
        broker = PulsarBroker(folder / "pulsar").start()
        try:
            chaos = PulsarChaos(folder, broker, arguments.records, arguments.seed)
            tally = chaos.run(arguments.kills)
        finally:
            broker.stop()
    print(tally)
    sys.exit(1 if tally.lost or any(tally.lag.values()) else 0)


if __name__ == "__main__":
    main()
