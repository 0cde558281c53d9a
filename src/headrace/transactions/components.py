"""Spouts and bolts: the classes that users subclass.

A component is pickled when the topology is built; each of its tasks works on a copy.  Attributes
that a callback sets live as long as that copy, which may be made anew at any batch, so data that
must last goes through ``finish_batch`` and ``commit``, or through a key-value bolt's ``state``.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, MutableMapping
from typing import Any, BinaryIO

from headrace.private import private_folder, users_folder
from headrace.topology import (
    DEFAULT_STREAM,
    BatchGroupId,
    BoltCollector,
    SpoutCollector,
    TaskContext,
    Tuple,
)

# Tuples that a spout that cannot replay has emitted and no commit has taken, in a local file.
#
# Tasks move between the processes of a machine, and a batch that fails may end them.  A tuple that
# was taken from such a source exists nowhere else, so it is in this file before it is passed on.

_FOLDER = "spouts"
#: Seconds after which what a driver left behind is of no use to anybody.
_OLD = 24 * 3600.0


class SpoutLog:
    """Keeps the tuples of one task, and where its batches end, in a file.

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
        """Keep a tuple; after :meth:`flush` it survives the end of the process."""
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
        """Return the tuples that no commit has taken, and forget the others.

        Parameters
        ----------
        committed
            The last batch that the task knows to be committed.
        """
        self.flush()
        found: list[list[Any]] = []
        # The last entry of a process that was killed may be cut off.
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
        """Close the file, which stays."""
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
    """Remove what drivers that ended long ago have left behind."""
    for folder in users_folder(_FOLDER).iterdir():
        with contextlib.suppress(OSError):
            newest = max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
            if time.time() - max(newest, folder.stat().st_mtime) > _OLD:
                shutil.rmtree(folder)


class FieldsDeclarer:
    """Takes what a component says about the streams that it emits to.

    Examples
    --------
    >>> declarer = FieldsDeclarer()
    >>> declarer.declare("word", "count")
    >>> declarer.declare_stream("long", "word")
    >>> declarer.streams
    {'default': ('word', 'count'), 'long': ('word',)}
    """

    def __init__(self) -> None:
        #: Names of the fields by stream.
        self.streams: dict[str, tuple[str, ...]] = {}
        #: Streams whose tuples name the task that takes them.
        self.direct_streams: set[str] = set()

    def declare(self, *fields: str, direct: bool = False) -> None:
        """Name the fields of the tuples of the stream ``"default"``."""
        self.declare_stream(DEFAULT_STREAM, *fields, direct=direct)

    def declare_stream(self, stream: str, *fields: str, direct: bool = False) -> None:
        """Name the fields of the tuples of a stream.

        Parameters
        ----------
        stream
            Name of the stream.
        fields
            Names of the values, in order.
        direct
            Whether its tuples are emitted with ``emit_direct``, to one task each.
        """
        self.streams[stream] = fields
        self.direct_streams.discard(stream)
        if direct:
            self.direct_streams.add(stream)


class Component:
    """The base of spouts and bolts."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields of what is emitted; a component that emits nothing leaves it out."""
        del declarer

    def cleanup(self) -> None:
        """Release what :meth:`prepare` took: the task's copy is not used any more."""


class TransactionState:
    """The callbacks for state: a task's state is whatever ``commit`` returned last.

    In each batch the tuples come, then :meth:`finish_batch` and :meth:`commit` are called; once
    the batch is committed and the next one begins, :meth:`ack_commit` is.
    """

    def init_state(self, state: Any) -> None:
        """Begin with the state of the last committed batch, None where there is none.

        It is called once per copy, after ``prepare`` and before anything else.
        """
        raise NotImplementedError

    def finish_batch(self) -> Any:
        """End a batch, also one without tuples, and return what :meth:`commit` will get."""
        raise NotImplementedError

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        """Return the task's state after the batch, to be stored with the batch.

        A large state may be stored elsewhere; then its address is returned.  The batch rolls back
        where this returns ``COMMIT_FAIL`` or raises.  Unless overridden, the state is what
        :meth:`finish_batch` returned.
        """
        del batch_group_id
        return state

    def roll_back(self, state: Any) -> None:
        """Go back to the state of the last committed batch; None means: to the beginning.

        Unless overridden, :meth:`init_state` does it.
        """
        self.init_state(state)

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        """Take note that a batch, and so every one before it, is committed."""
        del batch_group_id


class Spout(TransactionState, Component, ABC):
    """A source of tuples that can replay from its state.

    Examples
    --------
    >>> class Numbers(Spout):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("number")
    ...
    ...     def init_state(self, state):
    ...         self.next = state or 0
    ...
    ...     def next_tuple(self, collector):
    ...         collector.emit([self.next])
    ...         self.next += 1
    ...
    ...     def finish_batch(self):
    ...         return self.next
    """

    def prepare(self, context: TaskContext) -> None:
        """Get ready to emit; before :meth:`init_state`."""

    @abstractmethod
    def init_state(self, state: Any) -> None:
        """Begin with the state of the last committed batch, None where there is none."""

    @abstractmethod
    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit tuples, if there are any; called again and again until the batch ends.

        A batch ends with ``collector.emit_barrier()``, after ``tuple.num.per.batch`` tuples of a
        task, or when a call emits nothing.
        """

    @abstractmethod
    def finish_batch(self) -> Any:
        """End a batch, also one without tuples, and return what ``commit`` will get."""


class OffsetSpout(Component, ABC):
    """A source whose tuples have offsets: those between two offsets can be read again.

    Its state is the offset of each task, which the engine keeps.

    Examples
    --------
    >>> class Lines(OffsetSpout):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("line")
    ...
    ...     def prepare(self, context):
    ...         self.lines = ["to be", "or not"]
    ...
    ...     def latest_offset(self, start, limit):
    ...         return min((start or 0) + limit, len(self.lines))
    ...
    ...     def read(self, start, end):
    ...         return ([line] for line in self.lines[start or 0 : end])
    """

    def prepare(self, context: TaskContext) -> None:
        """Get ready to read."""

    @abstractmethod
    def latest_offset(self, start: Any, limit: int) -> Any:
        """Return how far the batch that begins at ``start`` reads.

        Parameters
        ----------
        start
            Where the last committed batch ended; None for the beginning.
        limit
            How many tuples a batch should have at most (``tuple.num.per.batch``).

        Returns
        -------
        Any
            The end of the batch; ``start`` where there is nothing to read.
        """

    @abstractmethod
    def read(self, start: Any, end: Any) -> Iterable[Iterable[Any]]:
        """Return the values of the tuples from one offset up to another one, in order."""


class Bolt(Component, ABC):
    """Takes tuples and may emit others; it keeps nothing from batch to batch.

    Examples
    --------
    >>> class Split(Bolt):
    ...     def prepare(self, context, collector):
    ...         self.collector = collector
    ...
    ...     def execute(self, taken):
    ...         for word in taken["sentence"].split():
    ...             self.collector.emit([word])
    ...
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("word")
    """

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        """Get ready, before any tuple comes."""

    @abstractmethod
    def execute(self, taken: Tuple, /) -> None:
        """Take a tuple."""


class StatefulBolt(TransactionState, Bolt, ABC):
    """A bolt each of whose tasks keeps a state.

    Examples
    --------
    >>> from collections import Counter
    >>> class WordCount(StatefulBolt):
    ...     def init_state(self, state):
    ...         self.counts = Counter(state or {})
    ...
    ...     def execute(self, taken):
    ...         self.counts[taken["word"]] += 1
    ...
    ...     def finish_batch(self):
    ...         return dict(self.counts)
    """

    @abstractmethod
    def init_state(self, state: Any) -> None:
        """Begin with the state of the last committed batch, None where there is none."""

    @abstractmethod
    def finish_batch(self) -> Any:
        """End a batch, also one without tuples, and return what ``commit`` will get."""


class KeyValueBolt(Bolt, ABC):
    """A bolt that keeps a value per key, in key ranges, so that its parallelism can change.

    ``self.state`` is a mapping from keys to values.  A task finds the keys of its ranges in it:
    those that its fields grouping sends there (one field: its value; several: a tuple of them).
    A value that is changed in place must be stored again.

    Examples
    --------
    >>> class WordCount(KeyValueBolt):
    ...     def execute(self, taken):
    ...         word = taken["word"]
    ...         self.state[word] = self.state.get(word, 0) + 1
    """

    #: The task's values, from the first ``execute`` of a batch to its ``finish_batch``.
    state: MutableMapping[Any, Any]

    def finish_batch(self) -> None:
        """End a batch, also one without tuples: the last moment to change the state or emit."""

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        """Take note that a batch, and so every one before it, is committed."""
