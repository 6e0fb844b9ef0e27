"""Run three NATS nodes on this machine until Ctrl-C. One that ends is started again after a while.

EBBFLOW_NATS_USER=me EBBFLOW_NATS_PASSWORD=secret python -m examples.cluster.start [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from ebbflow import EbbflowError
from examples.cluster.nodes import Nodes, ports_from


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.cluster.start")
    parser.add_argument(
        "--folder", type=Path, default=Path(".ebbflow/cluster"), help="data and logs (%(default)s)"
    )
    parser.add_argument("--port", type=int, default=4222, help="of the first node (%(default)s)")
    parser.add_argument(
        "--away", type=float, default=10, help="seconds until a lost node returns (%(default)s)"
    )
    arguments = parser.parse_args()
    try:
        user = os.environ.get("EBBFLOW_NATS_USER", "")
        password = os.environ.get("EBBFLOW_NATS_PASSWORD", "")
        nodes = Nodes(arguments.folder, user, password, ports_from(arguments.port))
        run(nodes, arguments.away)
    except EbbflowError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 3
    return 0


def run(nodes: Nodes, away: float) -> None:
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        nodes.start()
        nodes.wait_until_healthy()
        for node in nodes.all:
            print(f"{node.name} on 127.0.0.1:{node.ports.client}, process {node.pid}, {node.log}")
        hosts = ",".join(f"nats://127.0.0.1:{node.ports.client}" for node in nodes.all)
        print(f"Ready: {hosts}. Ctrl-C stops them.", flush=True)
        while signal.sigtimedwait(wanted, away) is None:
            start_again(nodes)
    finally:
        nodes.stop()


def start_again(nodes: Nodes) -> None:
    for node in nodes.all:
        if not node.running:
            node.start()
            print(f"{node.name} had ended and is back, process {node.pid}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
