"""Requests of the publisher and of the commit that are lost, or whose answers are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, PullConsumer
from headrace.errors import RequestTimeoutError
from headrace.protocol.transactions import CommitRecord, commit_in
from headrace.runtime.commit.journal import publishing, topic
from headrace.runtime.commit.journal.publishing import Publisher
from headrace.runtime.commit.journal.topic import CommitTopic
from headrace.store.compaction import CompactionSettings
from tests.faults.broker import make_lines
from tests.faults.journal_scene import Scene
from tests.faults.local_driver import LocalDriver
from tests.faults.word_pipeline import pipeline


def unreliable(method: Callable[..., Any], every: int) -> Callable[..., Any]:
    """Lose a request, then an answer, in turn, once in so many calls."""
    calls = itertools.count(1)

    def call(*given: Any) -> Any:
        number = next(calls)
        if number % (2 * every) == 0:
            raise RequestTimeoutError("the request was lost")
        found = method(*given)
        if number % every == 0:
            raise RequestTimeoutError("the answer was lost")
        return found

    return call


def test_lost_requests_and_answers_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is under way for long here.
    monkeypatch.setattr(publishing, "_UNDER_WAY", 0.01)
    monkeypatch.setattr(topic, "_UNDER_WAY", 0.01)
    monkeypatch.setattr(Publisher, "_send_once", unreliable(Publisher._send_once, 3))
    monkeypatch.setattr(CommitTopic, "_append_once", unreliable(CommitTopic._append_once, 2))
    with EmbeddedBroker(tmp_path / "broker") as broker:
        scene = Scene(broker.address, tmp_path)
        scene.send(make_lines(100))
        job = pipeline(scene.mark)
        with LocalDriver(broker.address, scene.folder, job=job, journal=True) as driver:
            assert driver.catch_up() == 5
        assert (scene.problems(), scene.repeated()) == ([], 0)
        scene.close()


def test_what_was_published_before_an_end_in_order_is_not_published_again(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        scene = Scene(broker.address, tmp_path)
        scene.send(make_lines(60))
        job = pipeline(scene.mark)
        with LocalDriver(broker.address, scene.folder, job=job, journal=True) as first:
            assert first.catch_up(2) == 2
        # Two drivers die before they commit anything, so the next one cannot know of the end.
        for _ in range(2):
            LocalDriver(broker.address, scene.folder, job=job, journal=True).abandon()
        with LocalDriver(broker.address, scene.folder, job=job, journal=True) as last:
            assert last.epoch == 4
            assert last.catch_up() == 1
        assert (scene.problems(), scene.repeated()) == ([], 0)
        scene.close()


def test_who_reads_a_commit_topic_begins_at_a_record_that_counts(tmp_path: Path) -> None:
    name = "j-commitTopic"

    def record(kind: str, epoch: int, batch: int) -> CommitRecord:
        return CommitRecord(job="j", kind=kind, epoch=epoch, batch=batch, driver=f"driver-{epoch}")

    with EmbeddedBroker(tmp_path / "broker") as broker, Client(broker.address) as client:
        Admin(client).create_topic(name, queues=1)
        first, late = (CommitTopic(client, PullConsumer(client), name) for _ in range(2))
        first.append(record("open", 1, 0))
        late.refresh()
        for batch in range(1, 40):
            first.append(record("commit", 1, batch))
        first.append(record("open", 2, 39))
        late.append(record("commit", 1, 40))
        consumer = PullConsumer(client)
        log = CommitTopic(client, consumer, name).refresh()
        assert (log.epoch, log.batch, log.driver) == (2, 39, "driver-2")
        assert (log.next_offset, log.stands_on) == (42, 41)
        whole = PullConsumer(client)
        assert len(list(whole.blocks(client.queues(name)[0], 0, 42))) == 1
        assert consumer.statistics().bytes < whole.statistics().bytes / 4


def test_commit_topic_of_a_job_that_was_started_again_and_again_stays_short(tmp_path: Path) -> None:
    name = "j-commitTopic"
    # As RocketMQ does it: what deletes goes in the compaction that meets it.
    compaction = CompactionSettings(file_size=2000, tombstone_retention=timedelta(0))
    settings = BrokerSettings(flush="async", compaction=compaction)
    with (
        EmbeddedBroker(tmp_path / "broker", settings=settings) as broker,
        Client(broker.address) as client,
    ):
        Admin(client).create_topic(name, queues=1)
        consumer, store = PullConsumer(client), broker._server._running().store
        slow = CommitTopic(client, consumer, name)

        def start(epoch: int) -> CommitTopic:
            topic = CommitTopic(client, consumer, name)
            topic.refresh()
            assert (topic.log.epoch, topic.log.batch) == (epoch - 1, epoch - 1)
            driver = CommitRecord(job="j", kind="open", epoch=epoch, batch=0, driver=f"d-{epoch}")
            topic.append(msgspec.structs.replace(driver, batch=epoch - 1))
            if epoch == 12:
                slow.refresh()
            topic.append(msgspec.structs.replace(driver, kind="commit", batch=epoch))
            return topic

        late = start(1)
        for epoch in range(2, 25):
            start(epoch)
        # A commit of the first driver comes at last, and counts for nobody.
        late.append(CommitRecord(job="j", kind="commit", epoch=1, batch=2, driver="d-1"))
        for epoch in range(25, 41):
            start(epoch)
        store.compact(force=True)
        (queue,) = client.queues(name)
        blocks = consumer.blocks(queue, 0, consumer.end_offset(queue))
        left = [commit_in(message) for block in blocks for message in block.messages()]
        assert len(left) < 40
        assert min(record.epoch for record in left if record is not None) == 39
        for topic in (slow, late, CommitTopic(client, consumer, name)):
            log = topic.refresh()
            assert (log.epoch, log.batch, log.driver) == (40, 40, "d-40")
