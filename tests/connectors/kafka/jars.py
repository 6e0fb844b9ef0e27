"""The broker's jars: fetched once by Ivy, which comes with Spark, and kept for later runs.

Ivy uses its usual repositories; ``EBBFLOW_TEST_IVY_SETTINGS`` names a settings file
for machines that have a repository of their own. About 45 MB, in ``$XDG_CACHE_HOME/ebbflow-tests``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
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
    """The folder with the jars; raises ``NoBroker`` if they are not available."""

    def fetch(place: Path) -> Path:
        run_ivy(IVY_FILE, place, ("jar", "bundle"))
        if not list(place.glob("files/kafka_*.jar")):
            raise NoBroker("its jars cannot be fetched")
        return place / "files"

    return keep("kafka", IVY_FILE, fetch)


def keep(name: str, ivy_file: Path, fetch: Callable[[Path], Path]) -> Path:
    """The folder with what the file names; ``fetch`` makes it in a temporary folder."""
    version = hashlib.sha256(ivy_file.read_bytes()).hexdigest()[:12]
    folder = _cache() / f"{name}-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as place:
            _put(fetch(Path(place)), folder)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebbflow-tests"


def _put(fetched: Path, folder: Path) -> None:
    try:
        fetched.rename(folder)
    except OSError:  # another run was faster
        if not folder.is_dir():
            raise


def run_ivy(ivy_file: Path, place: Path, types: tuple[str, ...]) -> None:
    """Fetch what the file names to ``place/files``; raises ``NoBroker`` if that fails."""
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    settings = os.environ.get("EBBFLOW_TEST_IVY_SETTINGS")
    command = [
        *(java(), "-jar", str(ivy), "-warn", "-ivy", str(ivy_file), "-cache", str(place / "ivy")),
        *(("-settings", settings) if settings else ()),
        *("-types", *types),
        *("-retrieve", f"{place}/files/[artifact]-[revision].[ext]"),
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_WITHIN)
    except subprocess.TimeoutExpired:
        raise NoBroker(f"its files were not fetched within {_FETCH_WITHIN} s") from None
    if ended.returncode or not any((place / "files").glob("*")):
        lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines()]
        why = next((line for line in lines if "not found" in line or "Exception" in line), "")
        raise NoBroker(f"its files cannot be fetched: {why or lines[-1:]}")


def pkcs8(pem: str) -> str:
    """A private key in the form that Java reads."""
    from cryptography.hazmat.primitives import serialization as forms

    key = forms.load_pem_private_key(pem.encode(), None)
    plain = forms.NoEncryption()
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, plain).decode()
