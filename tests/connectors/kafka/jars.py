"""The broker's jars: fetched once by Ivy, which comes with Spark, and kept for later runs.

Ivy gets them from where it gets everything; ``EBBFLOW_TEST_IVY_SETTINGS`` names a settings file
for machines that have a repository of their own. About 45 MB, in ``$XDG_CACHE_HOME/ebbflow-tests``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

IVY_FILE = Path(__file__).with_name("ivy.xml")
_FETCH_WITHIN = 180


class NoBroker(Exception):
    """Why there is no Kafka on this machine."""


def java() -> str:
    """The Java that Spark uses as well."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if program is None:
        raise NoBroker("there is no java")
    return program


def jars() -> Path:
    """The folder that has them; ``NoBroker`` if they cannot be had."""
    version = hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12]
    folder = _cache() / f"kafka-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as place:
            _fetch(Path(place))
            _put((Path(place) / "jars"), folder)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebbflow-tests"


def _put(fetched: Path, folder: Path) -> None:
    try:
        fetched.rename(folder)
    except OSError:  # another run was faster
        if not folder.is_dir():
            raise


def _fetch(place: Path) -> None:
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    settings = os.environ.get("EBBFLOW_TEST_IVY_SETTINGS")
    command = [
        *(java(), "-jar", str(ivy), "-warn", "-ivy", str(IVY_FILE), "-cache", str(place / "ivy")),
        *(("-settings", settings) if settings else ()),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{place}/jars/[artifact]-[revision].[ext]"),
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_WITHIN)
    except subprocess.TimeoutExpired:
        raise NoBroker(f"its jars were not fetched within {_FETCH_WITHIN} s") from None
    if ended.returncode or not list(place.glob("jars/kafka_*.jar")):
        lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines()]
        why = next((line for line in lines if "not found" in line or "Exception" in line), "")
        raise NoBroker(f"its jars cannot be fetched: {why or lines[-1:]}")
