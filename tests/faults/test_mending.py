"""Late repetitions in state topics: compaction keeps the newer value, not the one that came last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client import PullConsumer
from headrace.keys import KEYS
from headrace.protocol.journal_tags import TAG, parse_tag
from tests.clusters import Cluster
from tests.faults.broker import make_lines
from tests.faults.journal_scene import Scene
from tests.faults.word_pipeline import pipeline
from tests.without import going_without

pytestmark = pytest.mark.timeout(180)

_NO_LEASE = going_without("lease")
_NO_MENDING = going_without("lease", "mend")


@pytest.fixture
def compacting(tmp_path: Path) -> Iterator[tuple[Scene, Callable[[], None]]]:
    """A job, and what lets the broker compact everything."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        store = broker._server._running().store
        scene = Scene(broker.address, tmp_path)

        def compact() -> None:
            store.compact(force=True)

        yield scene, compact
        scene.close()


def repeat_an_old_batch(scene: Scene) -> None:
    """Let a driver send a batch of its a second time, after later ones of its successor."""
    scene.send(make_lines(100))
    sleeper = scene.start("journal.publish.begin=stop:2", **_NO_MENDING)
    assert scene.run(**_NO_LEASE).returncode == 0
    scene.wake(sleeper)
    assert hidden(scene) > 0


def hidden(scene: Scene) -> int:
    """Count the keys of which the last message is not the one with the highest tag."""
    consumer, job, count = PullConsumer(scene.client), pipeline(scene.mark), 0
    for topic in job.state_topics.values():
        for queue in scene.client.queues(topic):
            tags: dict[str, list[tuple[int, int]]] = {}
            for result in consumer.blocks(queue, 0, consumer.end_offset(queue)):
                for message in result.messages():
                    tag = parse_tag(message.properties[TAG])
                    assert tag is not None
                    place = tag.batch, tag.sequence
                    tags.setdefault(message.properties[KEYS], []).append(place)
            count += sum(found[-1] < max(found) for found in tags.values())
    return count


def test_next_driver_writes_what_is_hidden_again(cluster: Cluster, tmp_path: Path) -> None:
    scene = Scene(cluster.namesrv, tmp_path)
    repeat_an_old_batch(scene)
    done = scene.run()
    assert done.returncode == 0, done.stderr
    assert "their present values are written again" in done.stderr
    assert hidden(scene) == 0
    # Once is enough.
    assert "written again" not in scene.run().stderr
    # The offsets of the group, which nobody reads back, are the sleeper's.
    assert not [found for found in scene.problems() if "offsets of the group" not in found]
    scene.close()


def test_state_survives_compaction(compacting: tuple[Scene, Callable[[], None]]) -> None:
    scene, compact = compacting
    repeat_an_old_batch(scene)
    assert scene.run().returncode == 0
    compact()
    shutil.rmtree(scene.folder)
    scene.send(make_lines(40, seed=1, first=100))
    done = scene.run()
    assert done.returncode == 0, done.stderr
    assert scene.problems() == []


def test_without_it_a_restore_stops(compacting: tuple[Scene, Callable[[], None]]) -> None:
    scene, compact = compacting
    repeat_an_old_batch(scene)
    assert scene.run(**_NO_MENDING).returncode == 0
    compact()
    shutil.rmtree(scene.folder)
    scene.send(make_lines(40, seed=1, first=100))
    done = scene.run(**_NO_MENDING)
    # Never a wrong value: what the commit says of a store is compared.
    assert "StateMismatchError" in done.stderr
