"""Processes are found and ended, with the kernel's lists and without."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.connect.hosts import processes

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]


@contextlib.contextmanager
def sleeping(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, **variables}
    with subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("lists", [True, False])
def test_children_are_found(monkeypatch: pytest.MonkeyPatch, *, lists: bool) -> None:
    monkeypatch.setattr(processes, "_LISTS_CHILDREN", lists)
    with sleeping() as child:
        assert child.pid in processes.children(os.getpid())
        assert child.pid in processes.descendants(os.getpid())


@pytest.mark.requirement(49)
def test_only_what_carries_the_mark_is_ended() -> None:
    with sleeping(HEADRACE_TEST_MARK="one") as one, sleeping(HEADRACE_TEST_MARK="other") as other:
        assert list(processes.marked("HEADRACE_TEST_MARK=one")) == [one.pid]
        assert processes.end_marked("HEADRACE_TEST_MARK=one") == (1, [])
        assert one.wait(5) == -signal.SIGKILL
        assert other.poll() is None


def test_mark_that_is_written_over_is_seen_in_proc() -> None:
    program = (
        "from headrace.connect.hosts.processes import overwrite_mark, marked\n"
        "import os, subprocess, sys\n"
        "overwrite_mark('HEADRACE_TEST_MARK', 'b' * 8)\n"
        "print(open('/proc/self/environ').read().count('HEADRACE_TEST_MARK=bbbbbbbb'))\n"
        "print(subprocess.run(['env'], capture_output=True, text=True).stdout.count('bbbbbbbb'))\n"
    )
    environment = {**os.environ, "HEADRACE_TEST_MARK": "a" * 8}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["1", "1"]


def test_descriptor_tells_when_a_process_has_ended() -> None:
    with sleeping() as child:
        handle = os.pidfd_open(child.pid)
        assert not processes.has_ended(handle)
        child.kill()
        assert processes.has_ended(handle, 5.0)
        os.close(handle)
    assert processes.resident_bytes(child.pid) == 0
    assert processes.proportional_bytes(child.pid) == 0
