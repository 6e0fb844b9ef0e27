"""Generates the blocking client from the handwritten one for asyncio.

Run ``make client`` after a change of ``client/asynchronous.py``; a test compares the output with
the file in the repository. ``client/conversations.py`` has the logic of both clients, so they only
differ in a few words.
"""

from __future__ import annotations

import re
from pathlib import Path

CLIENTS = Path(__file__).resolve().parent.parent / "src/ebbflow/client"
SOURCE, TARGET = CLIENTS / "asynchronous.py", CLIENTS / "blocking.py"

WORDS = {
    r'"""The client for asyncio\.': '"""The client for blocking code, made from ``asynchronous``'
    " by ``make client``.",
    r", on one event loop; ``stream`` is for ``async for``": ", from any number of threads",
    r"import asyncio\nimport os\n": "import os\nimport time\n",
    r"\basyncio\.sleep\b": "time.sleep",
    r"\b(?:async|await) ": "",
    r"\bAsync(Client|Iterator)\b": r"\1",
    r"\b_AsyncLine\b": "_Line",
    r"\b__a(enter|exit)__\b": r"__\1__",
    r"\ba(close|read|iter_bytes|next)\b": r"\1",
}
"""The replacement of each pattern in the blocking client, applied in this order."""


def generate() -> str:
    """Returns the code of the blocking client."""
    code = SOURCE.read_text("utf-8")
    for pattern, word in WORDS.items():
        code = re.sub(pattern, word, code)
    return code


if __name__ == "__main__":
    TARGET.write_text(generate(), "utf-8")
