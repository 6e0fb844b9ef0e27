"""The blocking client is what its script generates from the asyncio client."""

import runpy
from pathlib import Path

from ebbflow.client import blocking

SCRIPT = Path(__file__).parents[2] / "scripts" / "blocking_client.py"


def test_the_blocking_client_is_generated_from_the_asyncio_client():
    made = runpy.run_path(str(SCRIPT))["generate"]()
    assert made == Path(blocking.__file__).read_text(encoding="utf-8"), "run: make client"
