"""What must hold of connectors after every commit, and at the end: each line once, in its order."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.connect.data.positions import joined, task_job
from headrace.connect.records import Queue
from headrace.protocol.messages import StoredMessage
from headrace.protocol.transactions import CommitRecord
from headrace.topology.names import commit_topic
from tests.simulation.checks import NewMessages, require
from tests.simulation.outside import Outside

if TYPE_CHECKING:
    from headrace.broker.core import Core

__all__ = ["SINK", "SOURCE", "TOPIC", "ConnectChecks"]

SOURCE, SINK, TOPIC = "lines", "store", "brought"
_MOST_TASKS = 4


@dataclass
class _Jump:
    """Somebody has set where a log goes on."""

    at: int
    to: int


class ConnectChecks:
    """Looks at the topic and the commit records, against what lies outside.

    Parameters
    ----------
    outside
        The logs and the store.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._messages = NewMessages()
        self._records: dict[str, CommitRecord] = {}
        #: Number of the line of each log that must come next, and jumps that are due.
        self._next: dict[str, int] = defaultdict(int)
        self._jumps: dict[str, list[_Jump]] = defaultdict(list)
        #: What is in the topic, by queue and offset.
        self._brought: dict[tuple[Queue, int], str] = {}
        self._queues: dict[str, int] = {}
        #: How many commits there were.
        self.commits = 0

    def look(self, core: Core) -> None:
        """Check what has become visible since the last look."""
        for connector in (SOURCE, SINK):
            jobs = [task_job(connector, number) for number in range(_MOST_TASKS)]
            found = [
                (job, msgspec.json.decode(message.body, type=CommitRecord))
                for job in jobs
                for message in self._messages.take(core, commit_topic(job))
            ]
            for job, record in sorted(found, key=lambda each: each[1].timestamp):
                self._check_record(job, record)
                if connector == SOURCE:
                    self._note_jumps(jobs, job, record)
                self._records[job] = record
        for message in self._messages.take(core, TOPIC):
            self._check_line(message)
        for log, jumps in self._jumps.items():
            while jumps and jumps[0].at == self._next[log]:
                self._next[log] = jumps.pop(0).to
        self._check_positions()

    def _check_record(self, job: str, record: CommitRecord) -> None:
        shown = {name: one.offset for name, one in record.positions.items()}
        self._outside.world.tell(
            f"{job}: {record.kind} {record.epoch}, {record.batch}: {shown} {record.offsets}"
        )
        last = self._records.get(job)
        epoch, batch = (0, 0) if last is None else (last.epoch, last.batch)
        if record.kind == "open":
            require(record.epoch == epoch + 1, f"{job}: epoch {record.epoch} opens out of order")
            require(record.batch == batch, f"{job}: opens on batch {record.batch}, not {batch}")
        else:
            require(record.epoch == epoch, f"{job}: epoch {record.epoch} commits in {epoch}")
            require(record.batch == batch + 1, f"{job}: batch {record.batch} follows {batch}")
            self.commits += 1

    def _note_jumps(self, jobs: list[str], job: str, record: CommitRecord) -> None:
        last = self._records.get(job)
        before = {} if last is None else last.positions
        known = self._positions(jobs)
        for partition, position in record.positions.items():
            by_hand = position.generation % 2 == 1
            if by_hand and position != before.get(partition):
                to = 0 if position.offset is None else position.offset["n"]
                self._jumps[_log(partition)].append(_Jump(known.get(partition, 0), to))

    def _positions(self, jobs: list[str]) -> dict[str, int]:
        found = joined(self._records[job] for job in jobs if job in self._records)
        return {name: one.offset["n"] for name, one in found.items() if one.offset is not None}

    def _check_line(self, message: StoredMessage) -> None:
        line = message.body.decode()
        log, _, number = line.partition("-")
        jumps, wanted = self._jumps[log], self._next[log]
        while int(number) != wanted and jumps and jumps[0].at == wanted:
            wanted = jumps.pop(0).to
        require(int(number) == wanted, f"line {line} comes, and {log}-{wanted} must")
        queue = self._queues.setdefault(log, message.queue_id)
        require(
            queue == message.queue_id, f"line {line} is in queue {message.queue_id}, not {queue}"
        )
        self._next[log] = wanted + 1
        self._brought[Queue(TOPIC, "broker-a", message.queue_id), message.queue_offset] = line

    def _check_positions(self) -> None:
        jobs = [task_job(SOURCE, number) for number in range(_MOST_TASKS)]
        positions = {_log(name): at for name, at in self._positions(jobs).items()}
        for log, end in self._next.items():
            at = positions.get(log, 0)
            # Nobody reads a log that is removed: it is forgotten, or stays where the user has set it.
            over = log in self._outside.removed and end == self._outside.lines[log]
            jumps = self._jumps[log]
            by_hand = bool(jumps) and jumps[-1].to == at
            require(
                at == end or (over and (log not in positions or by_hand)),
                f"log {log} is committed to {at}, and {end} lines of it are there",
            )
        for log in positions.keys() - self._next.keys():
            require(
                positions[log] == 0, f"log {log} is committed to {positions[log]} without a line"
            )
        sinks = [task_job(SINK, number) for number in range(_MOST_TASKS)]
        found = joined(self._records[job] for job in sinks if job in self._records)
        for name, position in found.items():
            topic, broker, number = name.split("@")
            kept = self._outside.store.offsets.get(Queue(topic, broker, int(number)), 0)
            require(
                position.offset is None or position.offset <= kept,
                f"{name} is committed to {position.offset}, and the store has {kept}",
            )

    def is_done(self) -> bool:
        """Tell whether every line is in the topic, and all of that in the store."""
        return not self.lacks()

    def lacks(self) -> str:
        """Say what is not there yet."""
        for log, count in self._outside.lines.items():
            jumps = self._jumps[log] and log not in self._outside.removed
            if jumps or self._next[log] != count:
                return f"log {log} is read to {self._next[log]} of {count}"
        rows = self._outside.store.rows
        if len(rows) != len(self._brought):
            return f"the store has {len(rows)} of {len(self._brought)} records"
        require(rows == self._brought, "the store has other records than the topic")
        return ""


def _log(partition: str) -> str:
    name: str = json.loads(partition)["log"]
    return name
