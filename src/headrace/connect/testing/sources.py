"""Source tasks in a test: poll, commit, fall over, go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.connect.config.providers import resolve
from headrace.connect.handling.chains import source_chain
from headrace.connect.plugins import SourceConnector, SourceTask
from headrace.connect.records import Position, SourceBatch, SourceRecord, position_key
from headrace.connect.testing.contexts import KitOffsets, KitSourceContext
from headrace.connect.testing.units import TaskKit
from headrace.connect.values import check
from headrace.errors import SchemaError

if TYPE_CHECKING:
    from headrace.connect.config import Config
    from headrace.connect.handling.source_chain import SourceChain

__all__ = ["SourceTaskKit"]


class SourceTaskKit(TaskKit[SourceTask]):
    """Runs one task of a source connector in this process.

    The config is checked as the runtime checks it, every record against its schema, and positions
    must be what JSON can hold.

    Parameters
    ----------
    connector
        The connector's class.
    texts
        Its config; ``name`` and ``connector.class`` are filled in.
    number
        Which of its tasks runs.
    offsets
        Where it stood before; a :class:`KitOffsets` is shared with whoever else has it.

    Examples
    --------
    >>> from headrace.connect import SourceConnector, SourceRecord, SourceTask, declare, key
    >>> class CountTask(SourceTask):
    ...     def start(self, config):
    ...         self.count = (self.context.offsets.get({}) or {"count": 0})["count"]
    ...
    ...     def poll(self):
    ...         self.count += 1
    ...         offset = {"count": self.count}
    ...         return [SourceRecord(partition={}, offset=offset, topic="n", value=self.count)]
    >>> class CountConnector(SourceConnector):
    ...     task = CountTask
    ...
    ...     def task_configs(self, max_tasks):
    ...         return [{}]
    >>> with SourceTaskKit(CountConnector, {}) as kit:
    ...     first = [record.value for record in kit.read(2)]
    ...     kit.commit()
    ...     lost = [record.value for record in kit.read(3)]
    ...     kit.crash()
    ...     again = [record.value for record in kit.read(2)]
    >>> first, lost, again
    ([1, 2], [3, 4, 5], [3, 4])
    """

    def __init__(
        self,
        connector: type[SourceConnector],
        texts: Mapping[str, Any],
        *,
        number: int = 0,
        offsets: Sequence[tuple[Position, Position]] | KitOffsets = (),
    ) -> None:
        committed = offsets if isinstance(offsets, KitOffsets) else KitOffsets(list(offsets))
        super().__init__(connector, texts, number=number, offsets=committed)
        self._given: list[tuple[Position, Position | None]] = []

    @property
    def positions(self) -> list[tuple[Position, Position]]:
        """The committed partitions, each with its offset."""
        return self.committed.all()

    def poll(self) -> list[SourceRecord]:
        """Call ``poll()`` once, and give what came as records.

        Raises
        ------
        SchemaError
            When a record contradicts its schema, or its position is nothing that JSON holds.
        TaskFailedError
            When the task has called ``fail()``.
        """
        polled = self.poll_raw()
        if polled is None:
            return []
        return list(polled.records()) if isinstance(polled, SourceBatch) else list(polled)

    def poll_raw(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Call ``poll()`` once, and give what came as it came."""
        self.requests.raise_failure()
        polled = self.task.poll()
        self.requests.raise_failure()
        if isinstance(polled, SourceBatch):
            _check_position(polled.partition, polled.offset)
            self._given.append((polled.partition, polled.offset))
        else:
            for record in polled or ():
                _check_record(record)
                self._given.append((record.partition, record.offset))
        return polled

    def read(self, count: int, *, timeout: timedelta = timedelta(seconds=10)) -> list[SourceRecord]:
        """Poll until this many records have come; more may come with the last ``poll()``.

        Raises
        ------
        TimeoutError
            When they do not come in time; the message says how many did.
        """
        found: list[SourceRecord] = []
        deadline = time.monotonic() + timeout.total_seconds()
        while len(found) < count:
            found += self.poll()
            if time.monotonic() > deadline and len(found) < count:
                message = f"Only {len(found)} of {count} records came within {timeout}."
                raise TimeoutError(message)
        return found

    def read_all(self, *, quiet: int = 2) -> list[SourceRecord]:
        """Poll until nothing has come several times in a row."""
        found: list[SourceRecord] = []
        silent = 0
        while silent < quiet:
            polled = self.poll()
            silent = 0 if polled else silent + 1
            found += polled
        return found

    def messages(self) -> list[dict[str, Any]]:
        """Poll once, and give the messages that reach topics: through transforms and converters.

        Each is a dict with ``topic``, ``key`` and ``value`` as bytes, ``properties`` as a dict,
        ``queue`` and ``timestamp``.
        """
        polled = self.poll_raw()
        if polled is None or not len(polled):
            return []
        rows: list[dict[str, Any]] = self._chain.encode(polled).rows.to_pylist()
        return [{**row, "properties": dict(row["properties"] or ())} for row in rows]

    @cached_property
    def _chain(self) -> SourceChain:
        name = self.texts["name"]
        return source_chain(name, self._number, resolve(self.texts), wait=lambda _: False)

    def commit(self) -> None:
        """Commit all that was polled, and call the task's ``commit()``."""
        for partition, offset in self._given:
            self.committed.put(partition, offset)
        self._given.clear()
        self.task.commit()

    def _context(self, config: Config) -> KitSourceContext:
        self._given.clear()
        return KitSourceContext(self.texts["name"], config, self.committed, self.requests)


def _check_record(record: object) -> None:
    if not isinstance(record, SourceRecord):
        message = f"poll() gave the {type(record).__name__} {record!r}, which is no SourceRecord."
        raise SchemaError(message)
    _check_position(record.partition, record.offset)
    if not record.topic:
        message = f"The record at {dict(record.offset)} has no topic."
        raise SchemaError(message)
    if record.value_schema is not None:
        check(record.value, record.value_schema, "value")
    if record.key_schema is not None:
        check(record.key, record.key_schema, "key")
    for header in record.headers:
        if header.schema is not None:
            check(header.value, header.schema, f"header {header.key}")


def _check_position(partition: Position, offset: Position | None) -> None:
    for what, position in (("partition", partition), ("offset", offset or {})):
        try:
            position_key(position)
        except TypeError as error:
            message = f"The {what} {position!r} is nothing that JSON can hold: {error}."
            raise SchemaError(message) from None
