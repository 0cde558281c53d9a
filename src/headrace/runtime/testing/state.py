"""State stores for a test to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.layouts import PlainLayout
from headrace.runtime.state.looks import StateLook
from headrace.runtime.state.values import reader
from headrace.topology.shapes import state_shape

if TYPE_CHECKING:
    from headrace.runtime.state.store import MemoryBase, StateBase
    from headrace.topology import Operator

__all__ = ["TestState"]


class TestState(StateLook):
    """One state store, over all partitions: what ``job.state(name)`` shows of a running job.

    Parameters
    ----------
    operator
        Whose state it is.
    bases
        Its partitions.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> from headrace import StreamBuilder, TopologyTestDriver, serdes, tumbling
    >>> builder = StreamBuilder("job")
    >>> words = builder.source("words", serdes.string).key_by(lambda word: word)
    >>> minutes = words.window(tumbling(timedelta(minutes=1))).count(name="minutes")
    >>> minutes.to_stream().sink("counts", serdes.int)
    <end of 'sink-counts'>
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("words", serdes.string).pipe(["to", "be", "to"])
    ...     state = driver.state("minutes")
    ...     state.get("to"), state.all(), list(state.prefix("b"))
    (2, {'to': 2, 'be': 1}, [('be', 1)])
    """

    __test__ = False

    def __init__(self, operator: Operator, bases: Sequence[MemoryBase]) -> None:
        shape = state_shape(operator)
        layout = PROCESSORS[type(operator)].layout or PlainLayout()
        super().__init__(layout.of(shape), reader(operator, shape))
        # What every partition has whole is shown once.
        self._stores = bases[:1] if self._layout.everywhere else bases

    def __len__(self) -> int:
        return sum(len(base.entries) for base in self._stores)

    @contextmanager
    def _bases(self, key: bytes | None = None) -> Iterator[list[StateBase]]:
        del key
        yield list(self._stores)
