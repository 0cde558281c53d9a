"""Messages that a running job has yet to read, or has read, are gone: none is passed over silently."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import serdes
from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, Producer, PullConsumer
from headrace.errors import (
    CommitLostError,
    HeadraceError,
    InputMissingError,
    OffsetExpiredError,
    RollbackError,
)
from headrace.protocol.codes import Perm
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver

#: Keeps some forty messages of half a kibibyte.
SMALL = BrokerSettings(
    segment_size=4000, retention=None, retention_size=20_000, disk_watermark=1.0, flush="async"
)
QUEUE = "lines@broker-a@0"

Drive = Callable[..., LocalDriver]


def copies() -> Topology:
    builder = StreamBuilder("missing")
    builder.source("lines", serdes.string).sink("copies", serdes.string)
    return builder.build()


class Place:
    """A broker that forgets when it is told to, with a topic of one queue and its copy."""

    def __init__(self, broker: EmbeddedBroker, client: Client) -> None:
        self.address = broker.address
        self.client = client
        self._store = broker._server._running().store
        self._admin = Admin(client)
        self._admin.create_topic("copies", queues=1)
        self.make()

    def make(self, perm: Perm = Perm.READ | Perm.WRITE) -> None:
        self._admin.create_topic("lines", queues=1, perm=perm)

    def make_compacted(self) -> None:
        """Make it anew, as one that keeps the newest of all messages."""
        self._admin.delete_topic("lines")
        self._admin.create_topic("lines", 1, attributes={"cleanup.policy": "COMPACTION"})

    def make_anew(self) -> None:
        self._admin.delete_topic("lines")
        self.make()

    def send(self, count: int, first: int = 0) -> None:
        lines = [f"{number} ".ljust(400, ".").encode() for number in range(first, first + count)]
        (queue,) = self.client.queues("lines", for_="write")
        for begin in range(0, count, 5):
            part = pa.array(lines[begin : begin + 5], pa.binary())
            keys = pa.array([b"k" if begin else b"first"] * len(part), pa.binary())
            Producer(self.client).send_columns(queue, part, keys)

    def compact(self) -> None:
        self._store.compact(force=True)

    def expire(self) -> int:
        """Delete what retention deletes; give the first offset that is left."""
        self._store.expire()
        return self._store.bounds("lines", 0).min_offset

    def copied(self) -> list[int]:
        (queue,) = self.client.queues("copies")
        consumer = PullConsumer(self.client)
        begin, end = consumer.begin_offset(queue), consumer.end_offset(queue)
        blocks = consumer.blocks(queue, begin, end)
        return [int(each.body.split()[0]) for block in blocks for each in block.messages()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with (
        EmbeddedBroker(tmp_path / "broker", settings=SMALL) as broker,
        Client(broker.address) as client,
    ):
        yield Place(broker, client)


@pytest.fixture(params=[False, True], ids=["embedded", "journal"])
def drive(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Iterator[Drive]:
    running: list[LocalDriver] = []

    def begin(choice: str, batch_size: int = 5, **more: Any) -> LocalDriver:
        running.append(
            LocalDriver(
                place.address,
                tmp_path,
                batch_size,
                job=copies(),
                journal=request.param,
                on_expired_offset=choice,
                partitions=1,
                **more,
            )
        )
        return running[-1]

    yield begin
    for driver in running:
        driver.close()


def test_running_job_stops_where_retention_has_deleted_what_it_reads_next(
    place: Place, drive: Drive
) -> None:
    place.send(60)
    driver = drive("fail")
    driver.catch_up(1)
    first = place.expire()
    with pytest.raises(OffsetExpiredError) as raised:
        driver.catch_up()
    assert f"offset 5 of queue {QUEUE}, but the broker's first offset is {first}" in (
        raised.value.message
    )
    assert driver.record.offsets == {QUEUE: 5}


def test_running_job_goes_on_at_the_first_message_that_is_left_where_it_is_told_to(
    place: Place, drive: Drive
) -> None:
    place.send(60)
    driver = drive("earliest")
    driver.catch_up(1)
    first = place.expire()
    assert 10 < first < 50
    driver.catch_up(1)
    # The batch takes as many messages as any other, from the first one on.
    assert driver.record.offsets == {QUEUE: first + 5}
    driver.catch_up()
    assert place.copied()[-(60 - first) :] == list(range(first, 60))


def test_messages_that_go_between_plan_and_read_have_the_batch_rolled_back(
    place: Place, drive: Drive
) -> None:
    place.send(60)
    driver = drive("earliest")
    planned = driver.plan()
    place.expire()
    with pytest.raises(RollbackError, match="was to be read from 0 to 5"):
        driver.process(planned)


def test_running_job_stops_where_its_topic_was_made_anew(place: Place, drive: Drive) -> None:
    place.send(5)
    driver = drive("fail")
    driver.catch_up()
    place.make_anew()
    place.send(3)
    with pytest.raises(OffsetExpiredError, match=f"offset 5 of queue {QUEUE}, which ends at 3"):
        driver.catch_up()


def test_running_job_reads_a_topic_that_was_made_anew_where_it_is_told_to(
    place: Place, drive: Drive
) -> None:
    place.send(5)
    driver = drive("earliest")
    driver.catch_up()
    place.make_anew()
    # Where it goes on is committed at once: the queue may grow past the old place meanwhile.
    assert driver.catch_up(1) == 1
    assert driver.record.offsets == {QUEUE: 0}
    place.send(7, first=5)
    driver.catch_up()
    assert place.copied() == list(range(12))


def test_batch_is_not_committed_whose_messages_its_queue_has_lost(
    place: Place, drive: Drive
) -> None:
    place.send(5)
    driver = drive("fail")
    end = driver.process()
    place.make_anew()
    place.send(2)
    with pytest.raises(InputMissingError, match=rf"{QUEUE} up to offset 5, and it ends at 2") as e:
        driver.commit(end)
    assert e.value.retriable
    place.send(3, first=2)
    # All of them are there again, so to say: a broker that was only behind loses nothing.
    driver.commit(end)
    assert driver.record.offsets == {QUEUE: 5}


@pytest.mark.parametrize("drive", [True], indirect=True, ids=["journal"])
def test_queue_that_only_a_follower_shows_is_not_taken_for_one_that_lost_its_end(
    place: Place, drive: Drive
) -> None:
    place.send(5)
    driver = drive("fail")
    driver.catch_up()
    place.make_anew()
    place.send(3)
    # As a name server tells of a broker whose master is away.
    place.make(Perm.READ)
    assert driver.plan() is None
    place.make()
    with pytest.raises(OffsetExpiredError, match="which ends at 3"):
        driver.catch_up()


@pytest.mark.parametrize("drive", [True], indirect=True, ids=["journal"])
def test_gaps_that_compaction_leaves_are_no_missing_messages(place: Place, drive: Drive) -> None:
    place.make_compacted()
    place.send(20)
    place.compact()
    driver = drive("fail", batch_size=20)
    driver.catch_up()
    assert place.copied() == [4, 19]
    queues = [queue for topic in ("lines", "copies") for queue in place.client.queues(topic)]
    assert list(map(driver._job.is_gapless, queues)) == [False, True]


@pytest.mark.parametrize(
    ("journal", "error", "match"),
    [
        (False, InputMissingError, "come to batch 2 in epoch 1, but its commit topic ends with"),
        (True, CommitLostError, "ends at offset 2, and was read up to 3"),
    ],
    ids=["embedded", "journal"],
)
def test_running_job_notices_that_a_fail_over_has_lost_its_newest_commit(
    tmp_path: Path, *, journal: bool, error: type[HeadraceError], match: str
) -> None:
    folder, behind = tmp_path / "broker", tmp_path / "follower"
    with EmbeddedBroker(folder) as broker, Client(broker.address) as client:
        address = broker.address
        place = Place(broker, client)
        place.send(10)
        driver = LocalDriver(address, tmp_path, 5, job=copies(), journal=journal, partitions=1)
        driver.catch_up(1)
    shutil.copytree(folder, behind)
    port = int(address.rpartition(":")[2])
    with EmbeddedBroker(folder, port=port):
        assert driver.catch_up() == 1
        assert driver.plan() is None
    with EmbeddedBroker(behind, port=port):
        with pytest.raises(error, match=match):
            driver.process()
        if not journal:
            assert driver.roll_back() == 2
            again = LocalDriver(address, tmp_path, 5, job=copies(), partitions=1)
            assert (again.epoch, again.record.batch) == (3, 1)
            assert again.catch_up() == 1
            again.close()
        driver.abandon()
