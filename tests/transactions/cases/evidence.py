"""What a run of a case leaves behind: commits, inputs, results, states and callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.client import Client, PullConsumer
from headrace.errors import TopicNotFoundError
from headrace.protocol.transactions import CommitReader, CommitRecord, Verdict, commit_in
from headrace.runtime import MemoryStore
from headrace.runtime.bolts.states import TaskStates
from headrace.runtime.state.home import StateTopicReader
from headrace.topology import Operator, Spout, StatefulBoltNode, Topology
from tests.transactions.automaton import Call
from tests.transactions.cases.hooks import traces
from tests.transactions.cases.workload import Workload

__all__ = ["Evidence", "collect", "committed_results", "read_history"]


@dataclass(frozen=True)
class Evidence:
    """Everything that can be known of a run from outside."""

    workload: Workload
    #: Records of the commit topic, in the order of the log.
    history: Sequence[CommitRecord]
    #: Messages of the source topic by queue, in the order of offsets.
    inputs: Mapping[str, Sequence[Mapping[str, Any]]]
    #: Results as a committed reader gets them.
    results: Sequence[Mapping[str, Any]]
    #: States of the tasks by component, as of each commit.
    states: Mapping[int, Mapping[str, Sequence[Any]]]
    calls: Sequence[Call]
    #: Ids of messages that became dead letters.
    without: frozenset[int] = frozenset()

    @property
    def commits(self) -> list[CommitRecord]:
        """The commits, in order."""
        return [record for record in self.history if record.kind == "commit"]

    def read_by(self, record: CommitRecord) -> list[Mapping[str, Any]]:
        """Give the messages that a commit and all before it have read, dead letters left out."""
        return [
            row
            for queue, rows in self.inputs.items()
            for row in rows[: record.offsets.get(queue, 0)]
            if row["id"] not in self.without
        ]


def collect(
    address: str,
    topology: Topology,
    workload: Workload,
    sources: Sequence[str],
    sink: str,
    folder: Path,
) -> Evidence:
    """Read everything of a group back."""
    with Client(address) as client:
        history = read_history(client, topology)
        commits = [record for record in history if record.kind == "commit"]
        return Evidence(
            workload=workload,
            history=history,
            inputs={queue: rows for each in sources for queue, rows in _inputs(client, each)},
            results=committed_results(client, sink),
            states={each.batch: _states(client, topology, each) for each in commits},
            calls=list(traces(folder)),
        )


def read_history(client: Client, topology: Topology) -> list[CommitRecord]:
    """Give the records of the commit topic that count, in the order of the log."""
    try:
        (queue,) = client.queues(topology.commit_topic)
    except TopicNotFoundError:
        return []
    consumer, log = PullConsumer(client), CommitReader()
    found = []
    for block in consumer.blocks(queue, 0, consumer.end_offset(queue)):
        for message in block.messages():
            record = commit_in(message)
            if record is not None and log.feed(message.queue_offset, record) is Verdict.VALID:
                found.append(record)
    return found


def committed_results(client: Client, topic: str) -> list[Mapping[str, Any]]:
    """Read a topic of results as a committed reader does."""
    if not topic:
        return []
    consumer = PullConsumer(client, committed=True)
    return [
        msgspec.json.decode(message.body)
        for queue in client.queues(topic)
        for block in consumer.blocks(queue, 0, consumer.end_offset(queue))
        for message in block.messages()
    ]


def _inputs(client: Client, topic: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    names = {queue.queue_id: queue.name for queue in client.queues(topic)}
    for number, bodies in _bodies(client, topic).items():
        yield names[number], [msgspec.json.decode(body) for body in bodies]


def _bodies(client: Client, topic: str) -> dict[int, list[bytes]]:
    consumer = PullConsumer(client)
    return {
        queue.queue_id: [
            bytes(message.body)
            for block in consumer.blocks(queue, 0, consumer.end_offset(queue))
            for message in block.messages()
        ]
        for queue in client.queues(topic)
    }


def _states(client: Client, topology: Topology, record: CommitRecord) -> dict[str, list[Any]]:
    """Read the states of all tasks as of one commit."""
    topics = topology.state_topics
    queues = {
        topic: [queue.name for queue in sorted(client.queues(topic))] for topic in topics.values()
    }
    tags_of = None if client.is_headrace() else topology.name
    reader = StateTopicReader(PullConsumer(client), topics, queues.__getitem__, tags_of)
    stores = {store: MemoryStore() for store in topics}
    for state in record.states:
        for block in reader.read(state.store, state.partition, 0, state.end_offset, record.batch):
            for key, value in zip(block.keys, block.values, strict=True):
                if value is None:
                    stores[state.store].delete(key)
                else:
                    stores[state.store].put(key, value)
    return {store: _of_tasks(topology.operator(store), stores[store]) for store in topics}


def _of_tasks(operator: Operator, store: MemoryStore) -> list[Any]:
    assert isinstance(operator, Spout | StatefulBoltNode)
    saved = [TaskStates(store).read(task).data for task in range(operator.parallelism)]
    return [None if data is None else operator.state_serde.deserialize(data) for data in saved]
