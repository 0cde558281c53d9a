"""Processes of one mark are found, waited for and ended, and no others."""

from __future__ import annotations

import os
import signal
import time

import pytest

from headrace.connect.hosts.family import Family, end_marked
from headrace.connect.hosts.processes import marked
from tests.connect.hosts.sleepers import sleeping

MARK = "HEADRACE_TEST_MARK=one"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.requirement(49)
def test_only_what_carries_the_mark_is_ended() -> None:
    with sleeping(HEADRACE_TEST_MARK="one") as one, sleeping(HEADRACE_TEST_MARK="other") as other:
        assert list(marked(MARK)) == [one.pid]
        assert end_marked(MARK) == (1, [])
        assert one.wait(5) == -signal.SIGKILL
        assert other.poll() is None


def test_children_are_of_the_family_too() -> None:
    with sleeping(PARENT, HEADRACE_TEST_MARK="one") as parent, Family(MARK) as family:
        family.look()
        family.look()
        assert len(family) == 2
        assert family.end(5.0) == []
        assert parent.wait(5) == -signal.SIGKILL
    assert list(marked(MARK)) == []


def test_whoever_came_after_the_look_is_ended_as_well() -> None:
    with Family(MARK) as family:
        family.look()
        with sleeping(HEADRACE_TEST_MARK="one") as late:
            assert family.have_ended(0.0)
            assert family.end(5.0) == []
            assert late.wait(5) == -signal.SIGKILL


def test_wait_for_those_that_end_by_themselves_is_as_long_as_they_take() -> None:
    program = "print(flush=True); import time; time.sleep(0.3)"
    with sleeping(program, HEADRACE_TEST_MARK="one") as one, Family(MARK) as family:
        family.look()
        began = time.monotonic()
        assert not family.have_ended(0.05)
        assert family.have_ended(20.0)
        assert time.monotonic() - began < 10
        assert one.wait(5) == 0


def test_one_that_ends_already_is_waited_for_though_it_shows_its_mark_no_more() -> None:
    with sleeping(HEADRACE_TEST_MARK="one") as one, Family(MARK) as family:
        family.look()
        os.kill(one.pid, signal.SIGKILL)
        assert family.end(5.0) == []
        assert one.wait(5) == -signal.SIGKILL
