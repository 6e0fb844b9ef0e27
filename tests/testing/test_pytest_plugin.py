"""The pytest plugin, in a separate pytest: failed tests show simulations, examples are tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.testing.test_examples import CODE, SPEC

TEST = """\
from pathlib import Path
from ebbflow.testing import simulate

def test_it():
    result = simulate(Path(__file__).with_name("orders.yaml"), [{"n": 1, "later": True}])
    assert result["check"].redelivered == 2
"""
EXAMPLES = """\
- {name: an order, messages: [{n: 1}], expect: {out: {done: 1}}}
- {name: no order, messages: [{n: 1}], expect: {out: {done: 0}}}
"""


def run_pytest(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout


def test_a_failed_test_shows_its_simulations_and_examples_are_tests(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(SPEC)
    (tmp_path / "checks.py").write_text(CODE)
    (tmp_path / "test_orders.py").write_text(TEST)
    (tmp_path / "orders.test.yaml").write_text(EXAMPLES)
    (tmp_path / "other.test.yaml").write_text("of another tool")
    shown = run_pytest(tmp_path)
    assert "2 failed, 1 passed" in shown
    assert "simulation of orders" in shown
    assert "0s in-0-0 redelivered, due at 1h: not yet" in shown
    assert "orders.test.yaml:2: no order\nout: done is 1, expected 0" in shown
    assert "1 passed" in run_pytest(tmp_path, "orders.test.yaml::an order")
