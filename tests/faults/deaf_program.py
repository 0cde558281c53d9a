"""The program of tests of a driver's end: its tasks are deaf to what Spark says to its workers."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from headrace import JobSettings, StreamBuilder, serdes
from headrace.spark import StreamJob

LINES, COPIES = "deaf-lines", "deaf-copies"
#: A line that holds its task up for minutes, and one that does so for a moment, and is wrong.
LAST, ERROR = "last", "error"


def copied(line: str) -> str:
    """Return a line, at once or never."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep({LAST: 300.0, ERROR: 2.0}.get(line, 0.0))
    if line == ERROR:
        raise ValueError(line)
    return line


builder = StreamBuilder("deaf")
builder.source(LINES, serdes.string).map_values(copied).sink(COPIES, serdes.string)
topology = builder.build()

if __name__ == "__main__":
    given = JobSettings(namesrv=sys.argv[1], data_dir=Path(sys.argv[2]), master="local[2]")
    with StreamJob(topology, given).start() as job:
        job.await_termination()
