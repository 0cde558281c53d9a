"""``headrace job`` on both kinds of cluster, with a driver that runs and without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace import serdes
from headrace.cli.app import app
from headrace.client import Client
from headrace.errors import StateError
from headrace.runtime.commit.lease import Lease
from headrace.streams import StreamBuilder
from headrace.topology import Topology, commit_topic
from tests.clusters import Cluster
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

WORDS = ["to be", "or not", "to be"]


@pytest.fixture
def rig(cluster: Cluster, client: Client, make_topic: Callable[..., str], tmp_path: Path) -> Rig:
    return Rig(cluster.namesrv, client, tmp_path, make_topic)


class Job:
    """A word count that a test drives batch by batch, and the commands that look at it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.lines, self.counts = rig.topic(queues=1), rig.topic(queues=1)
        builder = StreamBuilder(f"job-{self.lines}")
        words = builder.source(self.lines, serdes.string, name="lines").flat_map_values(str.split)
        counted = words.key_by(str.lower).count(name="words")
        counted.to_stream().sink(self.counts, serdes.json)
        self.topology: Topology = builder.build()
        self.name = self.topology.name

    def driver(self, **given: Any) -> LocalDriver:
        return LocalDriver(self.rig.namesrv, self.rig.folder, job=self.topology, **given)

    def run(self, lines: list[str]) -> None:
        self.rig.send(self.lines, lines)
        with self.driver() as driver:
            driver.catch_up()

    def call(self, *command: str, status: int = 0, text: str = "") -> str:
        """Run ``headrace job ...``; give what it writes, or the message of its error."""
        arguments = ["job", *command, "--namesrv", self.rig.namesrv]
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}, input=text)
        if status and isinstance(done.exception, StateError):
            return f"{done.exception}\n{done.exception.hint}"
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    def ask(self, *command: str) -> Any:
        """Run a command with ``--json``."""
        return json.loads(self.call(*command, "--json"))


@pytest.fixture
def job(rig: Rig) -> Job:
    return Job(rig)


def test_list_shows_every_job_and_whether_it_runs(job: Job) -> None:
    job.run(WORDS)
    job.rig.send(job.lines, ["one more"])
    lease = Lease(job.rig.client, job.name, commit_topic(job.name), "a-driver")
    assert lease.acquire()
    told = {each["job"]: each for each in job.ask("list")}[job.name]
    assert (told["running"], told["epoch"], told["batch"], told["lag"]) == (True, 1, 1, 1)
    assert (told["state_entries"], told["partitions"]) == (4, 2)
    lease.release()
    row = next(line for line in job.call("list").splitlines() if f" {job.name} " in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells[:4] == [job.name, "stopped", "1", "1"]
    assert cells[4].endswith("ago")
    assert (cells[5], cells[7]) == ("1", "4")


def test_looking_takes_the_lease_from_nobody(job: Job) -> None:
    job.run(WORDS)
    lease = Lease(job.rig.client, job.name, commit_topic(job.name), "a-driver")
    assert not job.ask("status", job.name)["running"]
    assert lease.acquire()
    assert job.ask("status", job.name)["running"]
    assert lease.acquire(), "the look gave the lease of somebody else away"
    lease.release()


def test_status_shows_the_snapshot_of_a_job_without_a_driver(job: Job) -> None:
    job.run(WORDS)
    told = job.ask("status", job.name)
    stores = told["stores"]["words"]
    assert (stores["partitions"], stores["entries"], stores["changed_in_batch"]) == (2, 4, 1)
    assert 2 <= stores["largest_partition"] <= 4
    assert told["staged"] == []
    shown = job.call("status", job.name)
    assert f"Job {job.name} is stopped; epoch 1 was opened" in shown
    assert "Batch 1 was committed at" in shown
    row = next(line for line in shown.splitlines() if line.startswith("│ words") and " B " in line)
    assert row.split("│")[3].strip() == "4"


def test_status_of_a_job_that_committed_nothing(job: Job) -> None:
    job.driver().close()
    assert "Nothing is committed yet." in job.call("status", job.name)
    told = job.ask("status", job.name)
    assert (told["epoch"], told["batch"], told["committed"]) == (1, 0, None)


def test_status_of_a_job_that_is_not_there_names_one_that_is_near(job: Job) -> None:
    job.run(WORDS)
    shown = job.call("status", job.name + "x", status=1)
    assert "was never started on this cluster" in shown
    assert f"did you mean '{job.name}'?" in shown


def test_what_is_staged_is_shown(job: Job, cluster: Cluster) -> None:
    if cluster.kind == "rocketmq":
        pytest.skip("the journal")
    job.run(WORDS)
    job.rig.send(job.lines, WORDS)
    with job.driver() as driver:
        driver.process()
        (staged,) = job.ask("status", job.name)["staged"]
        assert (staged["epoch"], staged["batch"]) == (2, 2)
        assert staged["records"] == 8, "four counts, and as many entries of state"
        assert staged["bytes"] > 100
        shown = job.call("status", job.name)
    assert "Staged for batch 2 in epoch 2, waiting for its commit: 8 records in 2 parts" in shown
