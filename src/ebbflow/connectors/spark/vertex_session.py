"""Sessions of vertices, their formats, and the causes of Spark's errors.

A vertex has its own session, with its own views and settings. ``root_cause`` finds the sentence in
a chain of Java errors that says what is wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ebbflow.connectors.plans import Format
from ebbflow.domain.errors import SetupError
from ebbflow.engine.isolation import Trouble

_NOT_FOUND = "[DATA_SOURCE_NOT_FOUND]"


@contextmanager
def leaving_active(spark: SparkSession) -> Iterator[None]:
    """Restores ``spark`` as the active session after work with clones.

    Creating a DataFrame from Python activates its session, for the user's program as well.
    """
    try:
        yield
    finally:
        SparkSession._activeSession = spark
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def clone_session(spark: SparkSession, settings: Mapping[str, tuple[str, str]]) -> SparkSession:
    """Returns a session that has the views and functions of ``spark`` and can add its own.

    ``settings`` has Spark's default and a better value for each name. A setting that differs from
    the default stays.
    """
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, (usual, better) in settings.items():
        if own.conf.get(name) == usual:
            own.conf.set(name, better)
    return own


def find_format(spark: SparkSession, format: Format, where: str) -> str:
    """Returns Spark's class for the format; ``SetupError`` if there is none."""
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
    conf = spark._jsparkSession.sessionState().conf()
    try:
        return str(sources.lookupDataSource(format.name, conf).getName())
    except Py4JError as error:
        if _NOT_FOUND in str(error):
            raise SetupError(
                f"{where}: Spark has no format {format.name!r}.",
                "Correct it, or name the package that has it with "
                "--conf spark.jars.packages=GROUP:NAME:VERSION.",
            ) from None
        return ""  # reading or writing will report the error


_WRAPPER = re.compile(
    r"Job aborted|Writing job aborted|\[(STREAM_FAILED|TASK_WRITE_FAILED|FAILED_EXECUTE_UDF"
    r"|WRITING_JOB_ABORTED|MALFORMED_RECORD_IN_PARSING|FAILED_READ_FILE)"
)
_CONDITION = re.compile(r"\s*\[[A-Z][A-Z0-9_.]+]")
_FILE = re.compile(r"\[FAILED_READ_FILE\.\w+] Encountered error while reading file ([^\n]+)\.")
_PYTHON = "An exception was thrown from the Python worker"
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*): (.+)$", re.M)
_SQLSTATE = re.compile(r"\s*SQLSTATE: (\w{5});?")
# Classes of SQLSTATE about data: an invalid value, a violated constraint.
_OF_DATA = ("22", "23")
_SQL_ERROR = "java.sql.SQLException"
_ENTRY = re.compile(r"Batch entry (\d+) ")
_EXECUTE_FAILED = -3
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def silence_pyspark_loggers() -> None:
    """Stops PySpark from printing a traceback for each error, which Ebbflow logs in one line."""
    for name in _LOGGERS:
        logging.getLogger(name).disabled = True


def root_cause(error: BaseException) -> Trouble:
    """Returns the root cause of an error, on one line."""
    causes = list(_causes(error))
    if not causes:
        return _python(error)
    named = next((row for cause in causes if (row := _suspect(cause)) is not None), None)
    suspects = () if named is None else (named,)
    of_data = any(_state(cause).startswith(_OF_DATA) for cause in causes)
    cause = _choose_cause(causes)
    message = cause.getMessage() or "(no text)"
    if _PYTHON in message and (found := _PYTHON_ERROR.findall(message)):
        kind, text = found[-1]
        return Trouble(kind, text, of_data, suspects)
    text = " ".join(message.split()) if _is(cause, _SQL_ERROR) else _first_line(message)
    files = (_FILE.match(cause.getMessage() or "") for cause in causes)
    text += next((f" (in {file[1]})" for file in files if file), "")
    kind = cause.getClass().getSimpleName().removeprefix("Extended")
    return Trouble(kind, text, of_data, suspects)


def _state(cause: Any) -> str:
    """Returns the SQLSTATE of an error, or an empty text."""
    if _is(cause, _SQL_ERROR):
        return cause.getSQLState() or ""
    match = _SQLSTATE.search(cause.getMessage() or "")
    return match[1] if match else ""


def _python(error: BaseException) -> Trouble:
    text = str(error)
    return Trouble(type(error).__name__, _first_line(text) or "(no text)")


def _first_line(text: str) -> str:
    lines = (line.strip() for line in _SQLSTATE.sub("", text).splitlines())
    return next((line.rstrip(";") for line in lines if line), "")


def _causes(error: BaseException) -> Iterator[Any]:
    """Returns the Java exceptions behind an error, the outermost first."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    if isinstance(error, PySparkException):
        cause = getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        following = cause.getCause()
        if following is None and _is(cause, _SQL_ERROR):
            following = cause.getNextException()
        cause = following


def _choose_cause(causes: list[Any]) -> Any:
    """Returns the most specific cause: the database's, else one with a Spark error class."""
    of_database = [cause for cause in causes if _is(cause, _SQL_ERROR)]
    own = [cause for cause in of_database if not _is(cause, "java.sql.BatchUpdateException")]
    if own or of_database:
        return (own or of_database)[-1]
    texts = {id(cause): cause.getMessage() or "" for cause in causes}
    inner = [cause for cause in causes if texts[id(cause)] and not _WRAPPER.match(texts[id(cause)])]
    named = [cause for cause in inner if _CONDITION.match(texts[id(cause)])]
    return (named or [*reversed(inner)] or causes)[0]


def _suspect(cause: Any) -> int | None:
    """Returns the row of the batch on which a database failed, if it names it."""
    if not _is(cause, "java.sql.BatchUpdateException"):
        return None
    if found := _ENTRY.search(cause.getMessage() or ""):
        return int(found[1])
    counts = list(cause.getUpdateCounts())
    return counts.index(_EXECUTE_FAILED) if _EXECUTE_FAILED in counts else len(counts)


def _is(cause: Any, name: str) -> bool:
    try:
        kind = cause.getClass()
        while kind is not None:
            if kind.getName() == name:
                return True
            kind = kind.getSuperclass()
    except Py4JError:
        pass
    return False
