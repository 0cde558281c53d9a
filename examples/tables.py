"""Three uses of a compaction topic as a table: consumer offsets, source positions, checkpoints.

Each reads its topic from the start when it is made, and answers from memory after that.  A write
returns when this process reads it back, so that another call sees it.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.client import Client, MessageQueue, TableReader, TableWriter


class KeptTable:
    """A table that is read and written in one place."""

    def __init__(self, client: Client, topic: str) -> None:
        self.table = TableReader(client, topic)
        self._writer = TableWriter(client, topic)
        self.table.caught_up()

    def put(self, key: tuple[str, ...], value: object) -> None:
        """Write a value and read it back."""
        sent = self._writer.put(key, json.dumps(value).encode())
        self.table.wait_until(sent)

    def get(self, key: tuple[str, ...]) -> Any:
        """Look a value up; None if there is none."""
        value = self.table.get(key)
        return None if value is None else json.loads(value)

    def delete(self, key: tuple[str, ...]) -> None:
        """Delete a key."""
        self.table.wait_until(self._writer.delete(key))


class GroupOffsets(KeptTable):
    """Offsets of consumer groups: the key is the group and the queue."""

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Note the next offset that a group reads."""
        self.put((group, queue.name), offset)

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Tell the next offset that a group reads."""
        found: int | None = self.get((group, queue.name))
        return found


class SourcePositions(KeptTable):
    """How far connectors have read what they copy: the key is the connector and its partition."""

    def note(self, connector: str, partition: str, position: dict[str, Any]) -> None:
        """Note a position, for example a file and an offset in a database's log."""
        self.put((connector, partition), position)

    def position(self, connector: str, partition: str) -> dict[str, Any] | None:
        """Tell where a connector goes on."""
        found: dict[str, Any] | None = self.get((connector, partition))
        return found

    def partitions(self, connector: str) -> list[str]:
        """List the partitions of which a connector has a position."""
        return sorted(key[1] for key, _ in self.table.items() if key[0] == connector)


class Checkpoints(KeptTable):
    """The last checkpoint of each task of a stream job."""

    def save(self, job: str, task: str, number: int, state: dict[str, Any]) -> None:
        """Keep a checkpoint instead of the one before."""
        self.put((job, task), {"number": number, "state": state})

    def last(self, job: str, task: str) -> tuple[int, dict[str, Any]] | None:
        """Give the last checkpoint: its number and state."""
        found = self.get((job, task))
        return None if found is None else (found["number"], found["state"])

    def forget(self, job: str, task: str) -> None:
        """Drop the checkpoint of a task that is no more."""
        self.delete((job, task))
