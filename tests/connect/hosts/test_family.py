"""Processes of one mark are found, waited for and ended, and no others."""

from __future__ import annotations

import os
import signal
import time
import uuid

import pytest

from headrace.connect.hosts.processes import Family, end_marked, marked
from tests.connect.hosts.sleepers import sleeping

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def mine() -> str:
    """Give a value that no test beside this one uses."""
    return uuid.uuid4().hex


def mark_of(mine: str) -> str:
    return f"HEADRACE_TEST_MARK={mine}"


@pytest.mark.requirement(49)
def test_only_what_carries_the_mark_is_ended(mine: str) -> None:
    with (
        sleeping(HEADRACE_TEST_MARK=mine) as one,
        sleeping(HEADRACE_TEST_MARK=f"{mine}-2") as other,
    ):
        assert list(marked(mark_of(mine))) == [one.pid]
        assert end_marked(mark_of(mine)) == (1, [])
        assert one.wait(5) == -signal.SIGKILL
        assert other.poll() is None


def test_children_are_of_the_family_too(mine: str) -> None:
    with sleeping(PARENT, HEADRACE_TEST_MARK=mine) as parent, Family(mark_of(mine)) as family:
        family.look()
        family.look()
        assert len(family) == 2
        assert family.end(5.0) == []
        assert parent.wait(5) == -signal.SIGKILL
    assert list(marked(mark_of(mine))) == []


def test_whoever_came_after_the_look_is_ended_as_well(mine: str) -> None:
    with Family(mark_of(mine)) as family:
        family.look()
        with sleeping(HEADRACE_TEST_MARK=mine) as late:
            assert family.have_ended(0.0)
            assert family.end(5.0) == []
            assert late.wait(5) == -signal.SIGKILL


def test_wait_for_those_that_end_by_themselves_is_as_long_as_they_take(mine: str) -> None:
    program = "print(flush=True); import time; time.sleep(0.3)"
    with sleeping(program, HEADRACE_TEST_MARK=mine) as one, Family(mark_of(mine)) as family:
        family.look()
        began = time.monotonic()
        assert not family.have_ended(0.05)
        assert family.have_ended(20.0)
        assert time.monotonic() - began < 10
        assert one.wait(5) == 0


def test_one_that_ends_already_is_waited_for_though_it_shows_its_mark_no_more(mine: str) -> None:
    with sleeping(HEADRACE_TEST_MARK=mine) as one, Family(mark_of(mine)) as family:
        family.look()
        os.kill(one.pid, signal.SIGKILL)
        assert family.end(5.0) == []
        assert one.wait(5) == -signal.SIGKILL
