"""A process that nothing can break off leaves a trace of where it hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from headrace.runtime.time_limit import hanging_line, read_traces, traced
from headrace.runtime.user_code import UserFunction

LIMIT = 0.2


class _Operator:
    on_error = "fail"


def hang(_: int) -> None:
    time.sleep(3 * LIMIT)


def run(root: Path) -> None:
    with traced(root, LIMIT):
        UserFunction(_Operator(), hang, None).call(0, 1)  # type: ignore[arg-type]


def test_trace_names_the_line_of_the_user(tmp_path: Path) -> None:
    began = time.time() - 1
    # Python writes the stacks of a hundred threads, the newest first: those of a process of its own.
    program = f"from pathlib import Path; import {__name__} as it; it.run(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
    (trace,) = read_traces(tmp_path, began)
    line = hanging_line(trace)
    assert line is not None, trace
    assert line.startswith(f"{__file__}:")
    assert line.endswith("in hang")


def test_trace_is_read_once_and_the_next_one_is_found_again(tmp_path: Path) -> None:
    began = time.time() - 1
    run(tmp_path)
    assert len(read_traces(tmp_path, began)) == 1
    assert read_traces(tmp_path, began) == []
    run(tmp_path)
    assert len(read_traces(tmp_path, began)) == 1


def test_what_ends_in_time_leaves_no_trace(tmp_path: Path) -> None:
    with traced(tmp_path, LIMIT):
        pass
    time.sleep(2 * LIMIT)
    assert read_traces(tmp_path, 0) == []


def test_old_traces_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "hangs"
    folder.mkdir()
    gone = folder / "999999999.txt"
    gone.write_text("Timeout")
    os.utime(gone, (1, 1))
    assert read_traces(tmp_path, time.time() - 10) == []
    assert not gone.exists()


def test_trace_without_users_code_names_nothing() -> None:
    assert hanging_line('Timeout\nThread 1:\n  File "/spark/worker.py", line 1 in main') is None
