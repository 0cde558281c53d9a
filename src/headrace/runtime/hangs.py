"""Where tasks hang that no alarm can break off: each process leaves a trace of its stacks.

Python's fault handler writes it from a thread that needs no lock of Python's, so also while
compiled code holds that.  A driver on the same machine reads it before it has the process ended.
"""

from __future__ import annotations

import faulthandler
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from headrace.private import owners_folder
from headrace.user_lines import is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hanging_line", "read_traces", "traced"]

_FOLDER = "hangs"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.*)$')

#: The file of this process: it is kept open, as tasks are many and hang seldom.
_files: dict[tuple[int, Path], IO[str]] = {}


@contextmanager
def traced(root: Path, seconds: float) -> Iterator[None]:
    """Leave a trace of this process's stacks if something takes longer.

    Python writes those of the hundred newest threads: where there are more, the main one's lack.

    Parameters
    ----------
    root
        Folder of the job's local state.
    seconds
        How long it may take.
    """
    faulthandler.dump_traceback_later(seconds, file=_file(root))
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def read_traces(root: Path, since: float) -> list[str]:
    """Give the traces that processes have left since a time, in seconds since 1970."""
    traces = []
    for path in sorted((root / _FOLDER).glob("*.txt")):
        if path.stat().st_mtime >= since and (trace := path.read_text(errors="replace")):
            traces.append(trace)
        # A process that lives goes on with its file.
        path.write_text("") if Path("/proc", path.stem).exists() else path.unlink()
    return traces


def hanging_line(trace: str) -> str | None:
    r"""Name the line outside of this package at which a task hangs, by the trace of its process.

    >>> frames = ("/app/orders.py", 31, "look_up"), (__file__, 1, "over"), ("/worker.py", 7, "main")
    >>> shown = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    >>> hanging_line("\n".join(["Timeout (0:00:05)!", "Thread 0x00007f:", *shown]))
    '/app/orders.py:31 in look_up'
    """
    # Tasks run in the main thread, which is the oldest and so the last.
    for thread in reversed(trace.split("\n\n")):
        frames = [found for line in thread.splitlines() if (found := _FRAME.match(line))]
        ours = [at for at, frame in enumerate(frames) if is_ours(frame["file"])]
        if ours and ours[0] > 0:
            at = frames[0]
            return f"{at['file']}:{at['line']} in {at['name']}"
    return None


def _file(root: Path) -> IO[str]:
    key = os.getpid(), root
    if key not in _files:
        folder = root / _FOLDER
        owners_folder(folder)
        _files[key] = (folder / f"{os.getpid()}.txt").open("a")
    return _files[key]
