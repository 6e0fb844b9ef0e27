"""The class archive: the classes that the JVM has loaded, kept for the next start.

With it Spark starts in a third of the time and of the processor's work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import pyspark.version

_UNUSED = 30 * 86_400.0
# Writing takes a JVM 15 seconds of work. One that is killed half-way has written nothing, and the
# next one begins anew: on a busy machine every start would be slow and none would be the last.
_WRITTEN_WITHIN = 300.0
_ENDED_WITHIN = 30.0


class ClassArchive:
    """The archive of this process's JVM, written by the first run and used by later ones.

    The user's cache folder has one file for each installed Spark and version of Java: the JVM
    takes an archive only from the jars it was written from, at their path. The file is written
    under another name and moved into place whole, so that a killed JVM leaves no broken one.
    An archive that nobody has used for a month is removed.
    """

    def __init__(self, java: int) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = cache / "ebbflow"
        home = os.environ.get("SPARK_HOME") or str(pyspark.version.__file__)
        place = hashlib.sha256(home.encode()).hexdigest()[:8]
        version = pyspark.version.__version__
        self._file = self._folder / f"spark-{version}-java-{java}-{place}.jsa"
        self._draft = f"{self._file}.{os.getpid()}"

    def java_option(self) -> str:
        """Returns the options with which the JVM uses the archive, or writes a first one."""
        if self._file.exists():
            with contextlib.suppress(OSError):
                os.utime(self._file)  # in use
            # The archive holds for one collector only; for a driver this small it is the best.
            return f'-XX:+UseSerialGC "-XX:SharedArchiveFile={self._file}" -Xlog:cds=off'
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return "-XX:+UseSerialGC"
        return f'-XX:+UseSerialGC "-XX:ArchiveClassesAtExit={self._draft}" -Xlog:cds=off'

    @property
    def seconds_to_end(self) -> float:
        """The seconds that a JVM may take to end: more, if it writes the archive."""
        return _ENDED_WITHIN if self._file.exists() else _WRITTEN_WITHIN

    def keep(self, whole: bool) -> None:
        """Moves what the JVM of this process wrote into place once it has ended, or deletes it."""
        with contextlib.suppress(OSError):
            os.replace(self._draft, self._file) if whole else os.unlink(self._draft)
            self._remove_unused()

    def _remove_unused(self) -> None:
        for archive in self._folder.glob("spark-*.jsa*"):
            if time.time() - archive.stat().st_mtime > _UNUSED:
                archive.unlink(missing_ok=True)
