"""Topologies on Spark: on both kinds of cluster, from the command line, with spouts that cannot replay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import TransactionJob, serdes
from headrace.errors import BatchTimeoutError
from headrace.topology import SpoutCollector, TaskContext, Tuple
from headrace.transactions import (
    FieldsDeclarer,
    JournalSpout,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
)
from tests.clusters import Cluster
from tests.spark import topology_program
from tests.spark.pipelines import LIMIT, Rig
from tests.transactions.components import Pass

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
WORDS = ["be"] * 5 + ["or"] * 3
COUNTS = Counter([*(("be", n) for n in range(1, 6)), *(("or", n) for n in range(1, 4))])
PATIENCE = 120.0


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def counted(rig: Rig, topic: str) -> Counter[tuple[str, int]]:
    # A RocketMQ broker shows what it has taken a moment later.
    wait_for(lambda: len(rig.read(topic)) >= COUNTS.total())
    return Counter((key, int(body)) for key, body in rig.read(topic))


def test_a_topology_goes_on_where_the_last_driver_stopped(rig: Rig) -> None:
    lines, counts = rig.topic(queues=1), rig.topic()
    batches = []
    for part in (WORDS[:4], WORDS[4:]):
        rig.send(lines, part)
        topology = topology_program.build(f"words-{lines}", lines, counts).build()
        with TransactionJob(topology, rig.settings()).start() as job:
            job.await_caught_up(LIMIT)
            batches.append(job.statistics().batch)
    assert batches[1] > batches[0] >= 1
    assert counted(rig, counts) == COUNTS


@pytest.mark.rocketmq
class TestHeadraceRun:
    @pytest.fixture
    def cluster(self, rocketmq: Cluster) -> Cluster:
        return rocketmq

    @pytest.mark.slow
    def test_it_takes_a_topology_on_rocketmq(self, rig: Rig) -> None:
        lines, counts = rig.topic(queues=1), rig.topic()
        said = ""
        for part in (WORDS[:4], WORDS[4:]):
            rig.send(lines, part)
            said += headrace_run(rig, lines, counts)
        assert counted(rig, counts) == COUNTS, said


def headrace_run(rig: Rig, lines: str, counts: str) -> str:
    program = topology_program
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        program.NAME: f"words-{lines}",
        program.LINES: lines,
        program.COUNTS: counts,
    }
    options = ["--namesrv", rig.namesrv, "--data-dir", str(rig.folder / "run"), "--partitions", "2"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headrace", "run", str(program.__file__)),
            *("--until-caught-up", "--master", "local[2,4]", *options),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Slips:
    """Takes slips of paper from a box, a folder per task: who has taken one cannot take it again."""

    def __init__(self, box: Path) -> None:
        self.box = box

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("number")

    def prepare(self, context: TaskContext) -> None:
        self.own = self.box / str(context.task)
        self.fuse = self.box / "fuse" if context.task == 0 else None

    def next_tuple(self, collector: SpoutCollector) -> None:
        slip = min(self.own.iterdir(), default=None)
        if slip is None:
            return
        # The ninth begins a batch: nothing that was taken is lost with this copy of the spout.
        if slip.name == "0008" and self.fuse is not None and self.fuse.exists():
            self.fuse.unlink()
            raise RuntimeError("the box is stuck")
        slip.unlink()
        collector.emit([slip.name])

    def cleanup(self) -> None:
        pass


class TestJournalSpout:
    @pytest.fixture
    def cluster(self, embedded: Cluster) -> Cluster:
        return embedded

    def test_what_it_took_comes_once_over_failures_of_both_groups(
        self, rig: Rig, tmp_path: Path
    ) -> None:
        box, out = tmp_path / "box", rig.topic()
        for task in range(2):
            (box / str(task)).mkdir(parents=True)
            for number in range(20):
                (box / str(task) / f"{task * 1000 + number:04}").touch()
        (box / "fuse").touch()
        config = {"tuple.num.per.batch": 4, "transaction.schedule.batch.delay.ms": 50}
        builder = TransactionTopologyBuilder(f"slips-{out}", config)
        builder.set_spout("slips", JournalSpout(Slips(box)), 2)
        builder.set_bolt("pass", Once(tmp_path / "once"), 2).shuffle_grouping("slips")
        builder.set_sink("out", TopicSink(out, serdes.json)).shuffle_grouping("pass")
        with TransactionJob(builder.build(), rig.settings()).start() as job:
            reads, writes = job.jobs.values()
            wait_for(lambda: job.failures == {} and len(rig.read(out)) >= 40)
            assert reads.statistics().restarts == 1
            assert writes.statistics().restarts == 1
        found = Counter(body.decode().strip('"') for _, body in rig.read(out))
        assert found == {f"{task * 1000 + n:04}": 1 for task in range(2) for n in range(20)}


class Once(Pass):
    """Passes numbers on; fails at the first that is above a thousand."""

    def __init__(self, flag: Path) -> None:
        super().__init__("number")
        self.flag = flag

    def execute(self, taken: Tuple, /) -> None:
        if taken["number"] >= "1000" and not self.flag.exists():
            self.flag.touch()
            raise RuntimeError("not at first")
        super().execute(taken)


class Sleeper(Pass):
    """Passes words on, and never comes back from one of them."""

    def execute(self, taken: Tuple, /) -> None:
        if taken["word"] == "perchance":
            time.sleep(10**6)
        super().execute(taken)


class TestWatchdog:
    @pytest.fixture
    def cluster(self, embedded: Cluster) -> Cluster:
        return embedded

    @pytest.mark.slow
    def test_bolt_that_sleeps_for_good_stops_the_job_and_is_named(self, rig: Rig) -> None:
        lines, out = rig.topic(queues=1), rig.topic()
        config = {"transaction.batch.snapshot.timeout": 10, "poison.max.rollbacks": 2}
        builder = TransactionTopologyBuilder(f"sleeps-{lines}", config)
        builder.set_spout("lines", TopicSpout(lines, serdes.string, fields=["word"]))
        builder.set_bolt("sleeper", Sleeper(), 2).shuffle_grouping("lines")
        builder.set_sink("out", TopicSink(out, serdes.string)).shuffle_grouping("sleeper")
        rig.send(lines, ["to", "sleep"])
        with TransactionJob(builder.build(), rig.settings()).start() as job:
            job.await_caught_up(LIMIT)
            before, slow = job.statistics().batch, job.statistics().restarts
            began = time.monotonic()
            rig.send(lines, ["perchance", "to", "dream"])
            with pytest.raises(BatchTimeoutError) as caught:
                job.await_termination(timedelta(seconds=PATIENCE))
            took = time.monotonic() - began
            # On a busy machine the first batch, which starts processes, may be too slow as well.
            assert (job.statistics().batch, job.statistics().restarts) == (before, slow + 2)
        # Three times the limit, and pauses of half a second and a second.
        assert took >= 3 * 10 + 0.5 + 1
        message = str(caught.value)
        assert "'sleeper'" in message
        assert "time.sleep(10**6)" in message
        assert f"2 roll-backs to batch {before} did not help" in message
        assert Counter(body for _, body in rig.read(out)) == {b"to": 1, b"sleep": 1}
