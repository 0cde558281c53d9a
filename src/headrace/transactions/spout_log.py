"""What a spout that cannot replay has emitted and nobody has committed, in a file of the machine.

Tasks move between the processes of a machine, and a batch that fails may end them.  A tuple that was
taken from such a source exists nowhere else, so it is in this file before it goes on its way.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import time
from typing import Any, BinaryIO

from headrace.private import private_folder, users_folder

__all__ = ["SpoutLog"]

_FOLDER = "spouts"
#: Seconds after which what a driver left behind is of no use to anybody.
_OLD = 24 * 3600.0


class SpoutLog:
    """The tuples of one task, and where its batches end.

    Parameters
    ----------
    owner
        Name that is the same in all processes of a driver, and in no others.
    task
        Name of the task.
    """

    def __init__(self, owner: str, task: str) -> None:
        self._folder = users_folder(_FOLDER) / owner
        self._path = self._folder / task
        self._file: BinaryIO | None = None

    def add(self, values: list[Any]) -> None:
        """Keep a tuple; it is safe from the end of the process after :meth:`flush`."""
        pickle.dump(values, self._opened())

    def end_batch(self, batch: int) -> None:
        """Note that all tuples so far are in a batch."""
        pickle.dump(batch, self._opened())
        self.close()

    def flush(self) -> None:
        """Hand everything to the system."""
        if self._file is not None:
            self._file.flush()

    def uncommitted(self, committed: int) -> list[list[Any]]:
        """Give the tuples that no commit has taken; those that one has are forgotten.

        Parameters
        ----------
        committed
            The last batch that the task knows to be committed.
        """
        self.flush()
        found: list[list[Any]] = []
        # What a process wrote last that was killed may have no end.
        ends = FileNotFoundError, EOFError, pickle.UnpicklingError
        with contextlib.suppress(*ends), self._path.open("rb") as file:
            while True:
                entry = pickle.load(file)  # noqa: S301 - written by this class
                if not isinstance(entry, int):
                    found.append(entry)
                elif entry <= committed:
                    found.clear()
        self._rewrite(found)
        return found

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rewrite(self, kept: list[list[Any]]) -> None:
        self.close()
        if not kept and not self._path.exists():
            return
        draft = self._path.with_suffix(".draft")
        with draft.open("wb") as file:
            for values in kept:
                pickle.dump(values, file)
        draft.replace(self._path)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            if not self._folder.exists():
                _sweep()
                private_folder(self._folder)
            self._file = self._path.open("ab")
        return self._file


def _sweep() -> None:
    """Remove what drivers left behind that ended long ago."""
    for folder in users_folder(_FOLDER).iterdir():
        with contextlib.suppress(OSError):
            newest = max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
            if time.time() - max(newest, folder.stat().st_mtime) > _OLD:
                shutil.rmtree(folder)
