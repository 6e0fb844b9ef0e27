"""Bento (Benthos), a stream processor in Go: built once from its module, or reported as left out.

``EBBFLOW_BENCH_BENTO`` names an existing program. Otherwise Go builds one with the few
components that contests need, and keeps it in ``$XDG_CACHE_HOME/ebbflow-bench``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import process_of

NAME, VERSION = "Bento", "v1.8.2"
_MODULE = "github.com/warpstreamlabs/bento"
_COMPONENTS = ("io", "kafka", "nats", "pure", "sql/base")
_DRIVER = "github.com/lib/pq"  # Bento's own driver for Postgres
_BUILD_WITHIN = 1_800
_PACKAGES = [*(f"{_MODULE}/public/components/{name}" for name in _COMPONENTS), _DRIVER]
_IMPORTS = "".join(f'\t_ "{name}"\n' for name in _PACKAGES)
_MAIN = f"""package main

import (
\t"context"

\t"{_MODULE}/public/service"

{_IMPORTS})

func main() {{
\tservice.RunCLI(context.Background())
}}
"""


_PARTS = hashlib.sha256(_MAIN.encode()).hexdigest()[:8]
UPPER_CASE = "root = content().uppercase()"


class NoBento(Exception):
    """Why there is no Bento on this machine."""


def find_program() -> Path:
    """Returns the program, built now if necessary; ``NoBento`` if that is impossible."""
    if named := os.environ.get("EBBFLOW_BENCH_BENTO"):
        if not Path(named).exists():
            raise NoBento(f"there is no {named}")
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "ebbflow-bench" / f"bento-{VERSION}-{_PARTS}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ebbflow-bento-") as folder:
            shutil.move(_build(Path(folder)), program)
    return program


def is_there(left_out: list[str]) -> bool:
    """Returns whether Bento is available; if not, the reason goes to ``left_out``."""
    try:
        find_program()
    except NoBento as error:
        left_out.append(f"{NAME}: {error}")
        return False
    return True


def _build(folder: Path) -> Path:
    if shutil.which("go") is None:
        raise NoBento("there is no Go to build it with")
    (folder / "main.go").write_text(_MAIN, encoding="utf-8")
    variables = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"}
    for words in (
        ("go", "mod", "init", "bench"),
        ("go", "get", f"{_MODULE}@{VERSION}"),
        ("go", "build", "-o", "bento", "."),
    ):
        try:
            ended = subprocess.run(
                words, cwd=folder, env=variables, capture_output=True, text=True,
                timeout=_BUILD_WITHIN,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NoBento(f"it was not built within {_BUILD_WITHIN} s") from None
        if ended.returncode:
            raise NoBento(f"{' '.join(words)}: {ended.stderr.strip()[-200:]}")
    return folder / "bento"


@contextmanager
def bento(
    source: dict[str, Any], sink: dict[str, Any], mapping: str = UPPER_CASE
) -> Iterator[psutil.Process]:
    """Runs Bento, which maps what it reads, for as long as the context lasts."""
    config = {
        "http": {"enabled": False},
        "logger": {"level": "ERROR"},
        "input": source,
        "pipeline": {"processors": [{"mapping": mapping}]},
        "output": sink,
    }
    with tempfile.TemporaryDirectory(prefix="ebbflow-bento-") as folder:
        file = Path(folder) / "bento.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        with process_of([str(find_program()), "-c", str(file)]) as process:
            yield process
