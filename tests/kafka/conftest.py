"""Without the client there is nothing to test here; the summary of the run says so."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("confluent_kafka") else ["test_*.py"]
