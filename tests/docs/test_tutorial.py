"""The tutorial, followed exactly: the files it shows, the commands, what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, commands, pattern
from tests.docs.pictures import draw_recording, keep

TUTORIAL = next(page for page in PAGES if page.path.name == "tutorial.md")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_works_as_described(tmp_path: Path) -> None:
    shown: list[str] = []
    for block in TUTORIAL.blocks:
        if block.name is not None:
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
        elif "run" in block.words:
            for command, expected in commands(block.text):
                output = printed(command, tmp_path)
                shown += [f"$ {command}", *output.rstrip().splitlines(), ""]
                assert re.fullmatch(pattern(expected), output, re.DOTALL), f"$ {command}\n{output}"
    recording = "\n".join(shown).replace(str(tmp_path), "/home/me/hello")
    keep("tutorial-recording.svg", draw_recording("hello", recording, {"$ ": 1.5}))


def printed(command: str, folder: Path) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("EBBFLOW_NATS_URL", None)
    done = subprocess.run(
        command.split(),
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
