"""Several threads of a bare loop, until one of them fails."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from threading import Thread


def work_at_once(threads: int, work: Callable[[], None]) -> None:
    """Calls ``work`` again and again in that many threads; an error ends the process."""

    def repeat() -> None:
        try:
            while True:
                work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    running = [Thread(target=repeat) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
