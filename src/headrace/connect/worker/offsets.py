"""Where connectors are in what they read: told always, changed while they are stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.connect.lifecycle import Target
from headrace.connect.worker.answers import OffsetEntry
from headrace.errors import ConnectRequestError, WorkerStoppingError

if TYPE_CHECKING:
    from headrace.connect.log import ConnectorEntry
    from headrace.connect.worker.catalog import Plugin
    from headrace.connect.worker.positions import PositionStore
    from headrace.connect.worker.worker import Worker

__all__ = ["Offsets", "check_queue_offset"]

_NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done"
    " for the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop'"
    " endpoint"
)
_PARTITION = {"rocketmq_topic": str, "rocketmq_broker": str, "rocketmq_queue_id": int}
_OFFSET = {"rocketmq_queue_offset": int}


class Offsets:
    """Reads and changes what the data plane has committed.

    Parameters
    ----------
    worker
        Knows the plugins, and whether requests are taken.
    entry
        Gives a connector by its name, or raises.
    positions
        Where the offsets are; None: there is no data plane.
    """

    def __init__(
        self,
        worker: Worker,
        entry: Callable[[str], ConnectorEntry],
        positions: PositionStore | None,
    ) -> None:
        self._worker = worker
        self._entry = entry
        self._given_positions = positions

    async def read(self, name: str) -> Sequence[OffsetEntry]:
        """Say where a connector is in what it reads."""
        entry = self._entry(name)
        return await self._positions.read(entry.kept_as, entry.config)

    async def alter(self, name: str, entries: Sequence[OffsetEntry]) -> None:
        """Set where a stopped connector goes on; its own code may say no."""
        entry = await self._stopped(name)
        plugin = await self._worker.catalog.of(entry.config)
        if plugin.role == "sink":
            for one in entries:
                check_queue_offset(one)
        entry = await self._allowed(name, plugin, entries)
        await self._positions.alter(entry.kept_as, entry.config, entries)

    async def reset(self, name: str) -> None:
        """Have a stopped connector begin anew; its own code may say no."""
        entry = await self._stopped(name)
        plugin = await self._worker.catalog.of(entry.config)
        known = await self._positions.read(entry.kept_as, entry.config)
        entry = await self._allowed(
            name, plugin, [OffsetEntry(one.partition, None) for one in known]
        )
        await self._positions.reset(entry.kept_as, entry.config)

    @property
    def _positions(self) -> PositionStore:
        if self._given_positions is None:
            raise WorkerStoppingError("this worker has no data plane, and so no offsets")
        return self._given_positions

    async def _stopped(self, name: str) -> ConnectorEntry:
        self._entry(name)
        # Another worker may have said more by now than was read here.
        await self._worker.catch_up()
        entry = self._entry(name)
        if entry.target is not Target.STOPPED or any(entry.alive()):
            told = _NOT_STOPPED.format(name=name)
            raise ConnectRequestError(told, hint=f"PUT /connectors/{name}/stop, then wait")
        self._worker.require_running()
        return entry

    async def _allowed(
        self, name: str, plugin: Plugin, entries: Sequence[OffsetEntry]
    ) -> ConnectorEntry:
        asked = [msgspec.to_builtins(one) for one in entries]
        answer = await self._worker.catalog.may_alter(plugin, self._entry(name).config, asked)
        if answer.failure is not None:
            raise ConnectRequestError(
                f"connector '{name}' does not take these offsets: {answer.failure.summary}"
            )
        # It may have been resumed while its code was asked.
        return await self._stopped(name)


def check_queue_offset(entry: OffsetEntry) -> None:
    """Refuse an offset of a sink that names no queue, or no place in it.

    Raises
    ------
    ConnectRequestError
        The message names the key.

    Examples
    --------
    >>> queue = {"rocketmq_topic": "t", "rocketmq_broker": "b", "rocketmq_queue_id": 0}
    >>> check_queue_offset(OffsetEntry(queue, {"rocketmq_queue_offset": 7}))
    >>> check_queue_offset(OffsetEntry(queue, None))
    >>> check_queue_offset(OffsetEntry({"kafka_topic": "t"}, None))
    Traceback (most recent call last):
    ...
    headrace.errors.ConnectRequestError: the partition of a sink's offset has no rocketmq_topic
      → send rocketmq_topic, rocketmq_broker, rocketmq_queue_id
    """
    _check("partition", entry.partition, _PARTITION)
    if entry.offset is not None:
        _check("offset", entry.offset, _OFFSET)


def _check(what: str, given: Mapping[str, Any], wanted: Mapping[str, type]) -> None:
    hint = f"send {', '.join(wanted)}"
    for key, kind in wanted.items():
        if key not in given:
            raise ConnectRequestError(f"the {what} of a sink's offset has no {key}", hint=hint)
        value = given[key]
        right = isinstance(value, kind) and not isinstance(value, bool)
        if not right or (isinstance(value, int) and value < 0):
            wish = "a text" if kind is str else "a whole number from 0 on"
            raise ConnectRequestError(
                f"{key} of a sink's offset is {value!r}, and must be {wish}", hint=hint
            )
    if unknown := sorted(given.keys() - wanted.keys()):
        raise ConnectRequestError(
            f"the {what} of a sink's offset has the unknown key {unknown[0]}", hint=hint
        )
