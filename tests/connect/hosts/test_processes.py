"""Processes are found and ended, with the kernel's lists and without."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.connect.hosts import processes
from tests.connect.hosts.sleepers import sleeping


@pytest.mark.parametrize("lists", [True, False])
def test_children_are_found(monkeypatch: pytest.MonkeyPatch, *, lists: bool) -> None:
    monkeypatch.setattr(processes, "_LISTS_CHILDREN", lists)
    with sleeping() as child:
        assert child.pid in processes.children(os.getpid())
        assert child.pid in processes.descendants(os.getpid())


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
