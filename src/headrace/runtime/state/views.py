"""Looking into the state of a job, from any process, as of its last commit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.errors import StateError
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.layouts import PlainLayout
from headrace.runtime.state.looks import StateLook
from headrace.runtime.state.values import reader

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.local import LocalCopies
    from headrace.runtime.state.store import StateBase
    from headrace.topology import Operator

__all__ = ["StateView"]


class StateView(StateLook):
    """The state of one operator, to look at: nothing here changes it.

    Each call sees the last commit; the job may run meanwhile, on any machine.  State topics are
    read into copies that belong to the view: the first look at a partition replays its queue,
    later ones read what is new.

    Parameters
    ----------
    home
        The job's cluster.
    operator
        Name of the operator.
    known
        The operator itself, where the program is at hand: its serdes read the values.

    Raises
    ------
    StateError
        The job has committed nothing, or has no state of this name.
    """

    def __init__(self, home: StateHome, operator: str, known: Operator | None = None) -> None:
        self.name = operator
        self._home = home
        record = home.record()
        names = sorted({state.store for state in record.states} | set(record.stores))
        if operator not in names:
            raise StateError(
                f"job '{home.job}' has no state of an operator '{operator}'",
                hint=f"it has state of {', '.join(names) or 'none'}",
            )
        shape = record.shapes.get(operator, {})
        kinds = {kind.__name__: processor for kind, processor in PROCESSORS.items()}
        kind = kinds.get(shape.get("operator", ""))
        layout = ((None if kind is None else kind.layout) or PlainLayout()).of(shape)
        super().__init__(layout, reader(known, shape))
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-view-")
        self._partitions = 0
        self._copies: LocalCopies | None = None

    def __len__(self) -> int:
        record = self._home.record()
        return sum(
            state.count
            for state in record.states
            if state.store == self.name and not (self._layout.everywhere and state.partition)
        )

    def close(self) -> None:
        """Delete the view's copies."""
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _bases(self, key: bytes | None = None) -> Iterator[list[StateBase]]:
        """Open the partitions as of the last commit."""
        record = self._home.published_record()
        wanted = None if key is None else self._layout.place(key, record.partitions)
        if self._layout.everywhere:
            wanted = 0
        with ExitStack() as opened:
            yield [
                self._open(opened, record, number)
                for number in range(record.partitions)
                if wanted in (None, number)
            ]

    def _open(self, opened: ExitStack, record: CommitRecord, partition: int) -> StateBase:
        summary = next(
            (s for s in record.states if (s.store, s.partition) == (self.name, partition)), None
        )
        if self._copies is None or self._partitions != record.partitions:
            # A job that was rescaled since may have queues that were not there.
            self._copies = self._home.copies([self.name], Path(self._folder.name))
            self._partitions = record.partitions
        copy = self._copies.open(self.name, partition, summary, record.lineage)
        opened.callback(copy.close)
        return copy.base
