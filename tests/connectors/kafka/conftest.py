"""Without the client the connector itself is not tested; the summary of the run says so."""

from __future__ import annotations

import importlib.util

_NEED_THE_CLIENT = [
    f"test_{name}.py" for name in ("outage", "sink", "sink_reports", "source", "transactions")
]

collect_ignore = [] if importlib.util.find_spec("confluent_kafka") else _NEED_THE_CLIENT
