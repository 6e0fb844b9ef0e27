"""Runs one map task in this process, and prints what executes while it processes one message.

``python -m tests.runtime.map_hop FOLDER`` prints JSON: the modules of Ebbflow in which a function
was called between the arrival of a message and its settlement, on any thread, and the stack frames
between the loop and user code. Several messages are processed, and the one with the fewest modules
counts: now and then, reports to the driver and purges of settled frames run during a message.
A process of its own: the hook must be there before any thread is.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ebbflow.connectors import Blackhole, Generator

LOOP = "ChunkLoop"
MESSAGES = 6
"""The first one is not measured: it opens user code."""


class Hook:
    """Records the modules of Ebbflow whose functions are called while it is switched on.

    ``others`` are the threads that send the messages: they are not part of the task.
    """

    def __init__(self) -> None:
        self.on = False
        self.modules: set[str] = set()
        self.others: set[int] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and threading.get_ident() not in self.others:
            name = frame.f_globals.get("__name__", "")
            if name.startswith("ebbflow."):
                self.modules.add(name.removeprefix("ebbflow."))


def frames_of_ebbflow(frame: FrameType | None) -> list[str]:
    """Returns the functions of Ebbflow that called this frame, up to the loop's own."""
    called = []
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_qualname.startswith(LOOP):
            return called
        if name.startswith("ebbflow."):
            called.append(f"{name.removeprefix('ebbflow.')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return called


def main(folder: Path) -> None:
    """Starts a server, sends messages to a map, and measures all but the first."""
    hook = Hook()
    threading.setprofile(hook)
    sys.setprofile(hook)

    from ebbflow import Message, Pipeline
    from ebbflow.nats.locate import open_link, start_embedded
    from ebbflow.operations.sending import Sender, SentMessage
    from ebbflow.runtime import provision
    from ebbflow.runtime.planning import make_plans
    from ebbflow.runtime.run_setup import store_spec
    from ebbflow.spark.epoch import run_partition
    from ebbflow.streams.names import Names

    arrived = [threading.Event() for _ in range(MESSAGES)]
    measured: list[set[str]] = []
    stacks: list[list[str]] = []

    def work(datum: Any) -> Message:
        stacks.append(frames_of_ebbflow(sys._getframe(1)))
        arrived[int(datum.value)].set()
        return Message(datum.value)

    pipeline = (
        Pipeline("hop", inline=False)
        .source("in", Generator(messages=1))
        .map("work", work)
        .sink("out", Blackhole())
    )
    with start_embedded(folder) as server, open_link(server) as link:
        spec, names = pipeline.spec, Names("hop")
        plans = make_plans(spec, server, link.client.max_payload, None)
        link.run(provision.provision(link, plans, 1))
        link.run(store_spec(link.client, names, spec))
        plan = next(plan for plan in plans if plan.vertex == "work")

        main_thread = threading.main_thread()
        hook.others = {t.ident for t in threading.enumerate() if t is not main_thread and t.ident}

        def conduct() -> None:
            hook.others.add(threading.get_ident())
            sender = Sender(link, names, "work")
            for number, event in enumerate(arrived):
                hook.modules, hook.on = set(), number > 0
                list(sender.send([SentMessage(str(number).encode())]))
                assert event.wait(120)
                _wait_settled(link.run, link, names, number + 1)
                hook.on = False
                measured.append(hook.modules)

        conducting = threading.Thread(target=conduct)
        conducting.start()
        run_partition([plan], 0, 8.0)
        conducting.join(120)
    sys.setprofile(None)
    print(json.dumps({"modules": sorted(min(measured[1:], key=len)), "frames": stacks[-1]}))


def _wait_settled(run: Callable[..., Any], link: Any, names: Any, chunks: int) -> None:
    from ebbflow.streams.positions import read_positions

    while True:
        position = run(read_positions(link.client, names)).get(("work", 0))
        if position is not None and position.counts.done >= chunks:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
