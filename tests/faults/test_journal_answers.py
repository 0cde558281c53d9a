"""Requests of the publisher and of the commit that are lost, or whose answers are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client import Admin, Client, PullConsumer
from headrace.errors import RequestTimeoutError
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.commit.journal import publishing, topic
from headrace.runtime.commit.journal.publishing import Publisher
from headrace.runtime.commit.journal.topic import CommitTopic
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
