"""Failpoints: read from the environment, deadly at the right hit, harmless otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.failpoints import (
    ENVIRONMENT_VARIABLE,
    arm,
    arm_in_folder,
    failpoint,
    parse_failpoints,
    read_hits,
)

_PROGRAM = """
from headrace.failpoints import failpoint
for number in range(5):
    failpoint("here")
    failpoint("elsewhere")
    print(number, flush=True)
"""


def run(value: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | {ENVIRONMENT_VARIABLE: value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nothing_happens_unless_asked_for() -> None:
    failpoint("here")
    assert run("").returncode == 0
    assert run("somewhere=kill").returncode == 0


def test_the_process_dies_at_the_hit_that_was_asked_for() -> None:
    done = run("here=kill:3")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n1\n")


def test_the_process_stands_still_until_it_is_told_to_go_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | {ENVIRONMENT_VARIABLE: "here=stop:3"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=60)[0] == "2\n3\n4\n"
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.parametrize("value", ["here", "here=die", "here=kill:0", "here=kill:x", "=kill"])
def test_a_malformed_value_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="name=kill"):
        parse_failpoints(value)


def test_processes_that_share_a_folder_count_their_hits_together(tmp_path: Path) -> None:
    for _ in range(2):
        assert run(f"folder:{tmp_path}").returncode == 0
    assert read_hits(tmp_path) == {"here": ["driver"] * 10, "elsewhere": ["driver"] * 10}


def test_a_hit_counted_over_all_processes_is_deadly_once(tmp_path: Path) -> None:
    arm_in_folder(tmp_path, "elsewhere=kill:7")
    assert run(f"folder:{tmp_path}").returncode == 0
    done = run(f"folder:{tmp_path}")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n")
    assert run(f"folder:{tmp_path}").returncode == 0
    assert len(read_hits(tmp_path)["elsewhere"]) == 12


def test_a_hit_that_processes_meet_at_once_has_one_number_each(tmp_path: Path) -> None:
    environment = os.environ | {ENVIRONMENT_VARIABLE: f"folder:{tmp_path}"}
    arm_in_folder(tmp_path, "here=kill:11")
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in processes:
        process.communicate(timeout=60)
    assert sorted(process.returncode for process in processes) == [-signal.SIGKILL, 0, 0]
    killed = len(read_hits(tmp_path)["here"])
    assert 11 <= killed <= 15


def test_a_process_arms_itself_anew(tmp_path: Path) -> None:
    arm(f"folder:{tmp_path}")
    failpoint("here")
    arm("")
    failpoint("here")
    assert list(read_hits(tmp_path)) == ["here"]
    with pytest.raises(SettingsError, match="name=kill"):
        arm_in_folder(tmp_path, "here")
