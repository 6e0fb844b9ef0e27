"""How much code one message passes through in one map: few modules, few stack frames."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MOST_MODULES = 32
"""Fewer are better: lower this number when modules have been merged.

Tag routing is a separate module because readers look for it by name.
"""

MOST_FRAMES = 7


@pytest.fixture(scope="module")
def hop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hop")
    command = [sys.executable, "-m", "tests.runtime.map_hop", str(folder)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_message_passes_through_few_modules_in_a_map(hop: dict[str, Any]) -> None:
    print(f"{len(hop['modules'])} modules: {', '.join(hop['modules'])}")
    assert len(hop["modules"]) <= MOST_MODULES, hop["modules"]


def test_few_stack_frames_lie_between_the_loop_and_user_code(hop: dict[str, Any]) -> None:
    print(f"{len(hop['frames'])} frames: {' < '.join(hop['frames'])}")
    assert 0 < len(hop["frames"]) <= MOST_FRAMES, hop["frames"]
