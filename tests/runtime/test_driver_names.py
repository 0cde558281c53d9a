"""Who may be taken for dead: drivers that have ended, by themselves or with their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.runtime.commit import drivers
from headrace.runtime.commit.drivers import DriverName

HERE = DriverName.here()


@contextmanager
def process() -> Iterator[DriverName]:
    """Run a process that could be a driver's; give the name of one."""
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            start = drivers._start_of(running.pid)
            assert start is not None
            yield replace(HERE, pid=running.pid, start=start)
        finally:
            running.kill()


def test_process_is_dead_when_it_has_ended_and_not_before() -> None:
    seen = {}
    with process() as driver:
        seen["runs"] = driver.is_dead()
        os.kill(driver.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, driver.pid, os.WSTOPPED)
        seen["is stopped"] = driver.is_dead()
        another = replace(driver, start=str(int(driver.start) - 1))
        seen["its number is another's now"] = another.is_dead()
        os.kill(driver.pid, signal.SIGKILL)
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        seen["nobody has asked how it ended"] = driver.is_dead()
    seen["is gone"] = driver.is_dead()
    assert seen == {
        "runs": False,
        "is stopped": False,
        "its number is another's now": True,
        "nobody has asked how it ended": True,
        "is gone": True,
    }


def test_nobody_is_taken_for_dead_who_cannot_be_seen_from_here() -> None:
    with process() as driver:
        pass
    assert driver.is_dead()
    numbers, clock = driver.space.split("-")
    others = {
        "another machine": replace(driver, boot="other"),
        "a copy of this machine": replace(driver, host="other"),
        "a container of the same host name": replace(driver, space=f"1-{clock}"),
        "a container whose clock begins elsewhere": replace(driver, space=f"{numbers}-1"),
        "an older release, which named no clock": replace(driver, space=numbers),
        "a system that tells no boot": replace(driver, boot=""),
        "a system that tells no space": replace(driver, space=""),
        "a system that tells no start": replace(driver, start=""),
    }
    assert {where for where, one in others.items() if one.is_dead()} == set()


def test_driver_that_has_said_good_bye_is_dead_and_others_of_its_process_are_not() -> None:
    ended, other = DriverName.here(), DriverName.here()
    ended.end()
    assert (ended.is_dead(), other.is_dead()) == (True, False)
    assert DriverName.parse(str(ended)) == ended


def shown(folder: Path, pid: int, threads: int) -> None:
    """Show a process whose first thread has ended, as ``/proc`` does."""
    (folder / str(pid)).mkdir(parents=True)
    numbers = ["1"] * 16 + [str(threads), "0", HERE.start, "0"]
    (folder / str(pid) / "stat").write_text(f"{pid} (a) b) Z {' '.join(numbers)}")


def test_what_proc_does_not_show_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = replace(HERE, pid=os.getppid())
    for name in ("self", "sys"):
        (tmp_path / name).symlink_to(Path("/proc", name if name == "sys" else str(os.getpid())))
    (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    monkeypatch.setattr(drivers, "_PROC", tmp_path)
    found = {"it hides what others run": parent.is_dead()}
    (tmp_path / str(parent.pid) / "stat").mkdir(parents=True)
    found["it cannot be read now"] = parent.is_dead()
    (tmp_path / str(parent.pid) / "stat").rmdir()
    (tmp_path / str(parent.pid)).rmdir()
    shown(tmp_path, parent.pid, threads=2)
    found["other threads go on"] = parent.is_dead()
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to("1" if os.getpid() != 1 else "2")
    found["it is that of another space"] = replace(parent, start="0").is_dead()
    assert not DriverName.here().space, "this process could not be found by its number"
    assert [what for what, dead in found.items() if dead] == []


@pytest.mark.budget(2)
def test_driver_in_a_container_of_the_same_name_sees_no_death_outside() -> None:
    with process() as driver:
        pass
    program = (
        "import sys; from headrace.runtime.commit.drivers import DriverName;"
        " print(DriverName.parse(sys.argv[1]).is_dead(), DriverName.here())"
    )
    inside = [sys.executable, "-c", program, str(driver)]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *inside],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "unshare" in done.stderr:
        pytest.skip("this account may not make containers")
    dead, name = done.stdout.split()
    other = DriverName.parse(name)
    assert other is not None
    assert (dead, other.is_dead()) == ("False", False)
    assert (other.host, other.boot) == (driver.host, driver.boot)
