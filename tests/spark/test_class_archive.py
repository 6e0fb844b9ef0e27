"""The archive of the JVM's classes: written whole, given the time it takes, and tidied up."""

from __future__ import annotations

import os
import time

import pytest

from ebbflow.spark.class_archive import ClassArchive


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ebbflow"


def test_a_first_jvm_writes_it_under_another_name_and_has_time_for_that(cache):
    archive = ClassArchive(17)
    assert "-XX:ArchiveClassesAtExit=" in archive.java_option()
    assert archive.seconds_to_end == 300

    draft = archive.java_option().partition("ArchiveClassesAtExit=")[2].partition('"')[0]
    with open(draft, "wb") as file:
        file.write(b"classes")
    archive.keep(whole=True)

    assert f"-XX:SharedArchiveFile={draft.rpartition('.')[0]}" in archive.java_option()
    assert archive.seconds_to_end == 30


def test_what_a_killed_jvm_has_written_is_not_used(cache):
    archive = ClassArchive(17)
    draft = archive.java_option().partition("ArchiveClassesAtExit=")[2].partition('"')[0]
    open(draft, "wb").close()
    archive.keep(whole=False)

    assert list(cache.iterdir()) == []
    assert "-XX:ArchiveClassesAtExit=" in archive.java_option()


@pytest.mark.parametrize("name", ["spark-4.2-java-17-ab.jsa", "spark-4.3-java-17-ab.jsa.123"])
def test_archives_and_drafts_that_nobody_uses_are_removed(cache, name):
    cache.mkdir()
    old = cache / name
    old.touch()
    os.utime(old, times=(time.time() - 40 * 86_400,) * 2)
    archive = ClassArchive(17)
    draft = archive.java_option().partition("ArchiveClassesAtExit=")[2].partition('"')[0]
    open(draft, "wb").close()
    archive.keep(whole=True)

    assert not old.exists()
