"""Processes that compact a log and end themselves before their N-th file operation.

Arguments are ``N:FOLDER``.  Each gets a fork of this process, which has no other thread.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.store.compaction.samples import open_log, settings
from tests.store.faulty_files import KilledAt


class SuicidalAt(KilledAt):
    """Sends itself SIGKILL where :class:`KilledAt` raises."""

    def _step(self) -> None:
        self.done += 1
        if self.done >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    for argument in arguments:
        number, _, folder = argument.partition(":")
        child = os.fork()
        if not child:
            config = settings(file_size=700, dirty_ratio=0.0)
            log = open_log(Path(folder), config, ops=SuicidalAt(int(number)))
            log.compact(force=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        sys.stdout.write("killed\n" if killed else f"ended with {status}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
