"""Offsets of a broadcasting member, in a file on its own machine, as RocketMQ's clients keep them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import field

from headrace.client.queues import MessageQueue
from headrace.errors import ProtocolError
from headrace.private import owners_folder
from headrace.protocol.bodies import JsonBody, QueueRef, dumps, loads

__all__ = ["LocalOffsets", "default_offsets_file"]

_log = logging.getLogger("headrace.client")


class _OffsetTable(JsonBody):
    offset_table: dict[str, int] = field(default_factory=dict)


def default_offsets_file(client_id: str, group: str) -> Path:
    """Where RocketMQ's Java clients keep the offsets of a broadcasting member."""
    return Path.home() / ".rocketmq_offsets" / client_id / group / "offsets.json"


class LocalOffsets:
    """The next offset to read of each queue, in a file.

    Caller: AsyncPushConsumer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}

    def load(self) -> None:
        """Read the file, or the copy of its last version where it is damaged."""
        for path in (self._path, self._backup):
            try:
                table = loads(path.read_bytes(), _OffsetTable).offset_table
                self._offsets = {_queue(key): offset for key, offset in table.items()}
            except FileNotFoundError:
                continue
            except ProtocolError as error:
                _log.warning("%s holds no offsets: %s", path, error)
                continue
            return

    def get(self, queue: MessageQueue) -> int | None:
        """Where to go on in a queue; None if it was never read."""
        return self._offsets.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note offsets: the file holds the old table or the new one, whatever happens."""
        self._offsets.update(offsets)
        table = {
            QueueRef(queue.topic, queue.broker, queue.queue_id).key: offset
            for queue, offset in sorted(self._offsets.items())
        }
        owners_folder(self._path.parent)
        fresh = self._path.with_name(f"{self._path.name}.tmp")
        with fresh.open("wb") as file:
            file.write(dumps(_OffsetTable(offset_table=table)))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            self._path.replace(self._backup)
        fresh.replace(self._path)

    @property
    def _backup(self) -> Path:
        return self._path.with_name(f"{self._path.name}.bak")


def _queue(key: str) -> MessageQueue:
    ref = QueueRef.of_key(key)
    return MessageQueue(ref.topic, ref.broker_name, ref.queue_id)
