"""What ``headrace job history`` reads of a long commit topic: what it shows, and little more."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli._jobs import _show_data, _show_tables
from headrace.client import Admin, Client, Message, MessageQueue, Producer, PullConsumer
from headrace.embedded import embedded_broker
from headrace.errors import ConnectionFailedError
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.jobs import journal as module
from headrace.runtime.jobs.journal import HistoryEntry, history, standing_of_job
from headrace.topology import commit_topic

JOB = "long"
COUNT = 4000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cluster whose job has committed often."""
    with embedded_broker(Path(tmp_path_factory.mktemp("long"))) as address, Client(address) as made:
        Admin(made).create_topic(commit_topic(JOB), queues=1)
        producer = Producer(made)
        for begin in range(1, COUNT + 1, 500):
            producer.send_batch([message(batch) for batch in range(begin, begin + 500)])
        yield made


def message(batch: int) -> Message:
    record = CommitRecord(job=JOB, kind="commit", epoch=1, batch=batch)
    return Message(topic=commit_topic(JOB), body=msgspec.json.encode(record))


class Watched(PullConsumer):
    """Notes what is read, and may find only every so many messages."""

    kept = 1
    read = 0

    def blocks(self, queue: MessageQueue, begin: int, end: int, **given: Any) -> Iterator[Any]:
        type(self).read += end - begin
        for result in super().blocks(queue, begin, end, **given):
            yield Kept([one for one in result.messages() if one.queue_offset % self.kept == 0])


class Kept:
    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages

    def messages(self) -> list[Any]:
        return self._messages


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(module, "PullConsumer", Watched)
    Watched.read, Watched.kept = 0, 1
    return Watched


def test_the_newest_are_read_alone(client: Client, watched: type[Watched]) -> None:
    found = list(history(client, JOB, last=5))
    assert [entry.batch for entry in found] == list(range(COUNT - 4, COUNT + 1))
    assert watched.read <= 5 + 200


def test_compacted_topic_is_read_further_back(client: Client, watched: type[Watched]) -> None:
    watched.kept = 100
    found = list(history(client, JOB, last=5))
    assert [entry.offset for entry in found] == [3500, 3600, 3700, 3800, 3900]
    assert [entry.batches for entry in found] == [100] * 5
    assert watched.read < COUNT, "but not all of it"


def test_what_there_was_since_a_time_is_read_alone(client: Client, watched: type[Watched]) -> None:
    assert list(history(client, JOB, since=datetime.now(UTC))) == []
    assert watched.read <= 200


def living() -> int:
    return sum(isinstance(one, HistoryEntry) for one in gc.get_objects())


def test_all_of_it_is_shown_and_never_in_memory(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    most: list[int] = []

    def entries() -> Iterator[HistoryEntry]:
        for number, entry in enumerate(history(client, JOB)):
            if number % 400 == 0:
                most.append(living())
            yield entry

    assert _show_data(entries()) == COUNT
    assert [each["batch"] for each in json.loads(capsys.readouterr().out)] == [*range(1, COUNT + 1)]
    assert max(most) <= 3, most


def test_long_history_is_tables_of_a_page_each(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _show_tables(islice(history(client, JOB), 1001)) == 1001
    shown = capsys.readouterr().out
    assert shown.count("┃ time ") == 2
    assert shown.count("│ commit │") == 1001


class Emptied(Client):
    """A client of a name server that has forgotten its brokers."""

    def brokers(self) -> dict[str, str]:
        return {}


def test_cluster_without_a_broker_does_not_say_that_there_is_no_job(client: Client) -> None:
    (address,) = client.asynchronous.name_servers
    with Emptied(address) as emptied:
        with pytest.raises(ConnectionFailedError, match="knows no broker now, and so no jobs"):
            history(emptied, "another")
        with pytest.raises(ConnectionFailedError, match="knows no broker"):
            standing_of_job(emptied, "another")
