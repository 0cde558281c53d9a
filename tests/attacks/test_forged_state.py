"""State that a stranger wrote, under a whole job: by its topic, and by a file for state import."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, Message, Producer, PullConsumer
from headrace.errors import StateError
from headrace.runtime.jobs.reset import exported, import_state
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.topology import Topology, Tuple
from headrace.transactions import KeyValueBolt, TransactionTopologyBuilder
from tests.attacks.test_pickles import FORGED, nothing_runs
from tests.clusters import Cluster
from tests.faults.local_driver import LocalDriver
from tests.transactions.components import Pass, Words

__all__ = ["nothing_runs"]

#: Of all that `test_pickles` gives to the serdes themselves.
WORST = ("pickle of an older state", "signed by another job", "a signature of something else")


class Tally(Pass, KeyValueBolt):
    """Counts words by numbers that are no plain data, where it may."""

    def __init__(self, one: Any) -> None:
        super().__init__()
        self.one = one

    def execute(self, taken: Tuple, /) -> None:
        self.state[taken["word"]] = self.state.get(taken["word"], 0) + self.one


class Scene:
    """A job that has state, and whoever writes to it."""

    def __init__(self, cluster: Cluster, folder: Path, client: Client, pickles: bool) -> None:
        self.cluster, self.folder, self.client, self.pickles = cluster, folder, client, pickles
        self.one = 1j if pickles else 1

    def job(self, name: str) -> Topology:
        config = {"topology.fall.back.on.pickle": self.pickles, "tuple.num.per.batch": 4}
        builder = TransactionTopologyBuilder(name, config)
        builder.set_spout("words", Words("a", "b"))
        builder.set_bolt("tally", Tally(self.one)).fields_grouping("words", "word")
        (job,) = builder.build().groups
        return job

    def run(self, job: Topology, *, anew: bool = False) -> None:
        """Commit two batches, each with two of both words; anew: without copies of its state."""
        if anew:
            shutil.rmtree(self.folder / "state")
        with LocalDriver(self.cluster.namesrv, self.folder, job=job) as driver:
            driver.catch_up(2)

    def state(self, job: Topology) -> dict[str, Any]:
        with CommittedState(
            StateHome.of(job.name, self.client), "tally", job.operator("tally")
        ) as view:
            return dict(view.range())


@pytest.fixture(params=[False, True], ids=["plain", "pickles"])
def scene(request: pytest.FixtureRequest, embedded: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with Client(embedded.namesrv) as client:
        yield Scene(embedded, tmp_path, client, request.param)


def by_import(scene: Scene, job: Topology, forged: bytes) -> None:
    """Export the state, put the forged value into each line, and import that."""
    home = StateHome.of(job.name, scene.client)
    with CommittedState(home, "tally") as view:
        lines = [json.loads(line) for line in exported(view)]
    value = base64.b64encode(forged).decode()
    assert import_state(home, "tally", [json.dumps(line | {"value": value}) for line in lines])


def by_topic(scene: Scene, job: Topology, forged: bytes) -> None:
    """Send what the job itself would write, with the forged value, and have the job commit on."""
    topic = f"{job.name}-tally-stateTopic"
    consumer, producer = PullConsumer(scene.client), Producer(scene.client)
    for queue in scene.client.queues(topic):
        for block in consumer.blocks(queue, 0, consumer.end_offset(queue)):
            for message in block.messages():
                (size,) = struct.unpack_from(">I", message.body)
                key = message.body[: 4 + size]
                body = key + struct.pack(">I", len(forged)) + forged
                sent = Message(topic=topic, body=body, keys=message.properties["KEYS"])
                producer.send(sent, queue=queue)
    scene.run(job)


@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (
            by_import,
            r"the state of key-value bolt 'tally', added at .*test_forged_state.py:\d+, is",
        ),
        (by_topic, r"the state topic of store 'tally', partition 0, holds .* with checksum"),
    ],
    ids=["by import", "by topic"],
)
def test_a_job_refuses_state_that_it_has_not_written(
    scene: Scene, forge: Callable[[Scene, Topology, bytes], None], told: str
) -> None:
    name = f"{forge.__name__}-{scene.pickles}".replace("_", "-")
    for number, what in enumerate(WORST):
        job = scene.job(f"forged-{name}-{number}")
        scene.run(job)
        assert set(scene.state(job)) == {"a", "b"}
        forge(scene, job, FORGED[what])
        with pytest.raises(StateError, match=told) as raised:
            scene.run(job, anew=True)
        assert raised.value.hint, what
