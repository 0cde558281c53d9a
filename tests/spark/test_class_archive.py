"""Archives of Spark's classes: used where they fit, of no harm where they do not."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.java import Java, find_java
from headrace.spark.class_archive import archive_of, archive_options

_USED = """
from pathlib import Path
from pyspark import SparkContext
from headrace.settings import JobSettings
from headrace.spark.session import get_session
get_session(JobSettings(data_dir=Path("data"), master="local[1]"))
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return find_java()


def made(java: Java, content: bytes = b"") -> Path:
    path = archive_of(java)
    path.write_bytes(content)
    return path


def test_java_is_started_as_ever_where_there_is_no_archive(java: Java) -> None:
    assert archive_options(java, "") == ""


def test_archive_that_is_there_is_named(java: Java) -> None:
    path = made(java)
    assert f"-XX:SharedArchiveFile={path}" in shlex.split(archive_options(java, "-Xmx1g"))


@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=/own.jsa -Xmx1g"])
def test_what_a_user_says_on_archives_stands(java: Java, given: str) -> None:
    made(java)
    assert archive_options(java, given) == ""


def test_file_of_another_user_is_not_used(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(java)
    if os.getuid() == 0:
        os.chown(path, 12_345, 12_345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12_345)
    assert archive_options(java, "") == ""


def test_another_java_has_another_archive(java: Java, tmp_path: Path) -> None:
    other = dataclasses.replace(java, home=tmp_path / "other")
    assert archive_of(other) != archive_of(java)


@pytest.mark.parametrize("content", [b"", b"no archive" * 1000])
def test_archive_that_does_not_fit_is_ignored_in_silence(java: Java, content: bytes) -> None:
    made(java, content)
    command = [str(java.executable), *shlex.split(archive_options(java, "")), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "rchive" not in done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look processes up in")
def test_archive_is_made_and_mapped_by_the_next_start(java: Java, tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "headrace", "prepare"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    path = archive_of(java)
    assert str(path) in made.stdout
    command = [sys.executable, "-c", _USED]
    maps = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert str(path) in maps
