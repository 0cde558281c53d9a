"""What a job on RocketMQ needs of its own topics, and what a start says when it is gone."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, Producer, PullConsumer
from headrace.errors import ConfigurationError
from headrace.protocol.codes import RequestCode
from headrace.topology.names import commit_topic, journal_topic
from tests.broker.wire import Wire
from tests.clusters import Cluster
from tests.faults.broker import make_lines
from tests.faults.journal_scene import Scene
from tests.faults.local_driver import LocalDriver
from tests.faults.word_pipeline import EACH, LATEST, pipeline
from tests.run.servers import SEGMENT

pytestmark = pytest.mark.timeout(240)

_KILLED = -signal.SIGKILL
_MIB = 1 << 20
_FILLER = "filler"


@dataclass(frozen=True)
class Forgetful:
    """A cluster that can be made to forget all but its newest messages, as it does in three days."""

    namesrv: str
    #: Deletes what has expired.
    clean: Callable[[], None]

    def expire(self, job: str) -> None:
        """Write until the journal of a job is gone."""
        with Client(self.namesrv) as client:
            Admin(client).create_topic(_FILLER, queues=1)
            (queue,) = client.queues(_FILLER, for_="write")
            Producer(client).send_columns(queue, pa.array([b"x" * _MIB] * 16, pa.binary()))
            consumer = PullConsumer(client)
            queues = client.queues(journal_topic(job))
            deadline = time.monotonic() + 120
            while not all(consumer.begin_offset(q) == consumer.end_offset(q) for q in queues):
                assert time.monotonic() < deadline, "the journal did not expire"
                self.clean()
                time.sleep(0.5)


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("rocketmq_that_forgets", marks=[pytest.mark.rocketmq, pytest.mark.slow]),
    ],
)
def forgetful(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forgetful]:
    if request.param == "embedded":
        settings = BrokerSettings(segment_size=SEGMENT, retention_size=2 * SEGMENT)
        with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings=settings) as broker:
            store = broker._server._running().store

            def forget() -> None:
                store.compact()
                store.expire()

            yield Forgetful(broker.address, forget)
        return
    cluster: Cluster = request.getfixturevalue("rocketmq_that_forgets")
    yield Forgetful(cluster.namesrv, lambda: _forget(cluster))


def _forget(cluster: Cluster) -> None:
    """Delete what the broker has written, and have it keep what comes for its three days."""
    with Client(cluster.namesrv) as client:
        (address,) = client.brokers().values()
    with Wire(address) as wire:
        assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=0").code == 0
        assert wire.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
        time.sleep(0.5)
        assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=72").code == 0


@pytest.fixture
def scene(forgetful: Forgetful, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(forgetful.namesrv, tmp_path)
    scene.send(make_lines(40))
    yield scene
    scene.close()


def test_job_goes_on_when_the_log_with_its_commits_has_expired(
    forgetful: Forgetful, scene: Scene
) -> None:
    assert scene.run().stdout.split() == ["open", "1", "batches", "2"]
    forgetful.expire(pipeline(scene.mark).name)
    # Commit and state topics keep the newest record of each key for good; state is restored from
    # there, and compared with what the commit says.
    shutil.rmtree(scene.folder)
    scene.send(make_lines(20, first=40))
    done = scene.run()
    assert done.stdout.split() == ["open", "2", "batches", "1"], done.stderr


def test_batch_that_the_journal_has_lost_is_not_published_in_part(
    forgetful: Forgetful, scene: Scene
) -> None:
    assert scene.run("journal.publish.begin=kill:2").returncode == _KILLED
    there = published(scene)
    forgetful.expire(pipeline(scene.mark).name)
    failed = scene.run()
    assert failed.returncode == 1
    assert "OffsetExpiredError" in failed.stderr
    assert "has committed batch 2, which is not wholly published" in failed.stderr
    assert "fileReservedTime" in failed.stderr
    assert published(scene) == there > 0


def published(scene: Scene) -> int:
    """Count the messages of output topics, deleted ones too."""
    consumer = PullConsumer(scene.client)
    queues = [q for topic in (LATEST, EACH) for q in scene.client.queues(topic + scene.mark)]
    return sum(consumer.end_offsets(queues).values())


def test_batch_of_which_nobody_knows_if_it_was_published_is_not_sent_again(
    forgetful: Forgetful, scene: Scene
) -> None:
    assert scene.run("journal.publish.done=kill:2").returncode == _KILLED
    forgetful.expire(pipeline(scene.mark).name)
    failed = scene.run()
    assert failed.returncode == 1
    assert "whether batch 2 of job" in failed.stderr
    assert "on_expired_offset='earliest'" in failed.stderr


def test_topics_that_are_needed_for_good_must_be_compacted(
    cluster: Cluster, tmp_path: Path
) -> None:
    scene = Scene(cluster.namesrv, tmp_path)
    job = pipeline(scene.mark)
    Admin(scene.client).create_topic(commit_topic(job.name), queues=1)
    with pytest.raises(ConfigurationError, match="is no compaction topic on broker") as raised:
        LocalDriver(cluster.namesrv, tmp_path, job=job, journal=True)
    assert f"headrace topic delete {commit_topic(job.name)}" in str(raised.value)
    scene.close()


def test_journal_must_outlive_a_batch(tmp_path: Path) -> None:
    settings = BrokerSettings(retention=timedelta(minutes=6))
    with EmbeddedBroker(tmp_path / "broker", settings=settings) as broker:
        scene = Scene(broker.address, tmp_path)
        job = pipeline(scene.mark)
        with pytest.raises(ConfigurationError, match=r"keeps messages for 0.1 h \(fileReserved"):
            LocalDriver(broker.address, tmp_path, job=job, journal=True, batch_timeout="121 s")
        with LocalDriver(broker.address, tmp_path, job=job, journal=True) as driver:
            assert driver.epoch == 1
        scene.close()


def test_brokers_tell_how_long_they_keep_messages(cluster: Cluster) -> None:
    with Client(cluster.namesrv) as client:
        (broker,) = client.brokers()
        config = Admin(client).broker_config(broker)
    assert (config["fileReservedTime"], config["brokerName"]) == ("72", broker)
