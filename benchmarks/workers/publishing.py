"""Publishes numbered texts to any subscriber, as fast as the server accepts them.

python -m benchmarks.workers.publishing SUBJECT MESSAGES SIZE SEED
"""

from __future__ import annotations

import sys
import time

from benchmarks.wire import Wire, publication
from benchmarks.work import numbered
from benchmarks.workers import server

if __name__ == "__main__":
    subject, *numbers = sys.argv[1:]
    to = subject.encode()
    texts = [publication(to, text) for text in numbered(*map(int, numbers))]
    wire = Wire(server())
    wire.send(b"".join(texts))
    # The parent process ends it: the server has not read all of it yet.
    time.sleep(3600)
