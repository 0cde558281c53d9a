"""``headrace job`` on both kinds of cluster, with a driver that runs and without one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace import serdes
from headrace.cli.app import app
from headrace.client import Admin, Client
from headrace.errors import FencedError, HeadraceError
from headrace.runtime.commit.drivers import Lease
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.commit.journal.publishing import totals
from headrace.runtime.jobs.journal import abort, standing_of_job
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.faults.harness import await_true
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig
from tests.transactions.traced import Sentences, Split, Trace
from tests.transactions.wiring import Wiring

WORDS = ["to be", "or not", "to be"]


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
        done = self._invoke(*command, text=text)
        if status and isinstance(done.exception, HeadraceError):
            return f"{done.exception}\n{done.exception.hint}"
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    def ask(self, *command: str) -> Any:
        """Run a command with ``--json``."""
        done = self._invoke(*command, "--json")
        assert done.exit_code == 0, (done.output, done.exception)
        # What it waits for it says beside that.
        return json.loads(done.stdout)

    def _invoke(self, *command: str, text: str = "") -> Result:
        arguments = ["job", *command, "--namesrv", self.rig.namesrv]
        return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}, input=text)


@pytest.fixture
def job(rig: Rig) -> Job:
    return Job(rig)


def test_list_shows_every_job_and_whether_it_runs(job: Job) -> None:
    job.run(WORDS)
    job.rig.send(job.lines, ["one more"])
    lease = Lease(job.rig.client, job.name, "a-driver")
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
    lease = Lease(job.rig.client, job.name, "a-driver")
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


def test_what_is_staged_is_shown(job: Job) -> None:
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
    # The next epoch makes it void, and drops it behind the answer.
    job.driver().close()
    await_true("staged", lambda: job.ask("status", job.name)["staged"] == [])


def test_history_shows_opens_and_commits_with_their_records(job: Job) -> None:
    job.run(WORDS)
    job.run([*WORDS, "and more"])
    told = [entry for entry in job.ask("history", job.name) if entry["kind"] != "close"]
    steps = [(e["kind"], e["epoch"], e["batch"], e["records_in"], e["records_out"]) for e in told]
    assert steps == [
        ("open", 1, 0, None, None),
        ("commit", 1, 1, 3, 4),
        ("open", 2, 1, None, None),
        ("commit", 2, 2, 4, 6),
    ]
    assert {entry["verdict"] for entry in told} == {"valid"}
    (newest,) = job.ask("history", job.name, "--last", "1")
    assert newest["offset"] == max(entry["offset"] for entry in job.ask("history", job.name))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in job.call("history", job.name).splitlines()
        if "│ commit" in line
    ]
    assert [row[1:6] for row in rows] == [
        ["commit", "1", "1", "3", "4"],
        ["commit", "2", "2", "4", "6"],
    ]


def test_history_of_a_job_that_is_not_there(job: Job) -> None:
    assert "was never started on this cluster" in job.call("history", job.name, status=1)


def test_history_since_a_time(job: Job) -> None:
    job.run(WORDS)
    time.sleep(1.1)
    begin = datetime.now(UTC)
    job.run(WORDS)
    old = [entry for entry in job.ask("history", job.name) if entry["time"] < begin.isoformat()]
    new = job.ask("history", job.name, "--since", begin.isoformat())
    assert {entry["epoch"] for entry in old} == {1}
    assert {entry["epoch"] for entry in new} == {2}
    assert [(e["kind"], e["batches"]) for e in new[:2]] == [("open", 0), ("commit", 1)]
    assert job.ask("history", job.name, "--since", "1 h") == old + new
    assert job.ask("history", job.name, "--since", "1 h", "--limit", "2") == new[-2:]
    assert job.ask("history", job.name, "--all") == old + new
    assert "Nothing since 0 s." in job.call("history", job.name, "--since", "0 s")
    assert job.ask("history", job.name, "--since", "0 s") == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--since", "yesterday"), "--since is 'yesterday', which is no time"),
        (("--since", "first"), "--since is 'first', which is no time"),
        (("--since", "1 h", "--all"), "--all and --last or --since exclude each other"),
    ],
)
def test_history_that_cannot_be_says_why(job: Job, given: tuple[str, ...], says: str) -> None:
    assert says in job.call("history", job.name, *given, status=1)


def counts(job: Job) -> dict[Any, int]:
    return job.rig.latest(job.counts)


def test_reset_to_the_first_message_counts_again_into_the_state(job: Job) -> None:
    job.run(WORDS)
    done = job.ask("reset", job.name, "--to", "first", "--yes")
    ((queue, moved),) = done["offsets"].items()
    assert queue.startswith(f"{job.lines}@")
    assert (moved, done["batch"]) == ({"from": 3, "to": 0}, 2)
    assert job.ask("status", job.name)["lag"] == 3
    job.run([])
    assert counts(job) == {"to": 4, "be": 4, "or": 2, "not": 2}


def test_reset_that_forgets_begins_as_if_the_job_had_never_run(job: Job) -> None:
    job.run(WORDS)
    done = job.ask("reset", job.name, "--forget", "--yes")
    assert done["dropped_entries"] == {"words": 4}
    assert len(done["forgotten"]) == 1
    told = job.ask("status", job.name)
    assert (told["state_entries"], told["lag"], told["batch"]) == (0, 3, 2)
    job.run(["to go"])
    assert counts(job) == {"to": 3, "be": 2, "or": 1, "not": 1, "go": 1}
    commits = [each for each in job.ask("history", job.name) if each["kind"] == "commit"]
    assert [each["records_in"] for each in commits] == [3, None, 4]


def test_reset_goes_to_offsets_the_end_and_times(job: Job) -> None:
    job.run(WORDS)
    before = datetime.now(UTC) - timedelta(minutes=5)
    places = [
        (f'{{"{job.lines}:0": 1}}', 1),
        ("last", 3),
        (before.isoformat(), 0),
        ("1 h", 0),
        ((before + timedelta(hours=1)).isoformat(), 3),
    ]
    for place, offset in places:
        done = job.ask("reset", job.name, "--to", place, "--topic", job.lines, "--yes")
        assert [moved["to"] for moved in done["offsets"].values()] == [offset], place
    job.run(["over"])
    assert counts(job)["to"] == 2


def test_reset_shows_first_and_changes_nothing_without_a_yes(job: Job) -> None:
    job.run(WORDS)
    shown = job.call("reset", job.name, "--to", "first", "--dry-run")
    row = next(line for line in shown.splitlines() if f"│ {job.lines}@" in line)
    assert [cell.strip() for cell in row.split("│")[2:5]] == ["3", "0", "-3"]
    assert "Its state stays: what is read again counts again." in shown
    assert "add --yes" in job.call("reset", job.name, "--to", "first", status=1)
    assert job.ask("status", job.name)["batch"] == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "a reset needs --to, --forget, or both"),
        (("--to", "yesterday"), "is no place in a topic"),
        (("--to", "first", "--topic", "other"), "reads no topic 'other'"),
        (("--to", '{"other:0": 1}'), "reads no queue 'other:0'"),
        (("--to", '{"LINES:0": 99}'), "holds offsets 0 to 3"),
        (("--to", '{"LINES:0": "x"}'), "offsets that are no numbers"),
    ],
)
def test_reset_that_cannot_work_says_why(job: Job, given: tuple[str, ...], says: str) -> None:
    job.run(WORDS)
    given = tuple(text.replace("LINES", job.lines) for text in given)
    assert says in job.call("reset", job.name, *given, "--yes", status=1)


@pytest.mark.parametrize(
    "command", [("history",), ("status",), ("reset", "--to", "first"), ("abort", "--yes")]
)
def test_job_that_is_not_there_is_named_with_one_that_is_near(
    job: Job, command: tuple[str, ...]
) -> None:
    job.run(WORDS)
    name, *options = command
    shown = job.call(name, job.name + "x", *options, status=1)
    assert f"job '{job.name}x' was never started on this cluster" in shown
    assert f"did you mean '{job.name}'?" in shown


def test_job_of_spouts_has_no_offsets_to_move(job: Job) -> None:
    trace = Trace(job.rig.folder)
    wiring = Wiring().spout("spout", Sentences(trace), 2)
    job.topology = wiring.bolt("split", Split(trace), ("spout", "shuffle")).build(job.name)
    with job.driver() as driver:
        driver.catch_up(2)
    assert job.ask("history", job.name, "--last", "1") != []
    commits = [each for each in job.ask("history", job.name) if each["kind"] == "commit"]
    assert [each["records_in"] for each in commits] == [6, 6], "what spouts emit is what comes in"
    shown = job.call("reset", job.name, "--to", "first", "--yes", status=1)
    assert "reads no topic: it has no offsets that could move" in shown
    assert "--forget lets them begin anew" in shown
    assert "All its state is dropped" in job.call("reset", job.name, "--forget", "--yes")


def test_reset_is_refused_while_a_driver_runs(job: Job) -> None:
    job.run(WORDS)
    lease = Lease(job.rig.client, job.name, "a-driver")
    assert lease.acquire()
    shown = job.call("reset", job.name, "--forget", "--yes", status=1)
    assert f"a driver of job '{job.name}' is running" in shown
    lease.release()


def test_abort_fences_the_driver_and_drops_what_it_staged(job: Job) -> None:
    job.run(WORDS)
    job.rig.send(job.lines, WORDS)
    with job.driver() as driver:
        end = driver.process()
        done = job.ask("abort", job.name, "--yes")
        assert (done["fenced_epoch"], done["epoch"], done["batch"]) == (2, 3, 1)
        assert [(each["batch"], each["records"]) for each in done["dropped"]] == [(2, 8)]
        with pytest.raises(FencedError):
            driver.commit(end)
    assert job.ask("status", job.name)["staged"] == []
    assert counts(job) == {"to": 2, "be": 2, "or": 1, "not": 1}
    job.run([])
    assert counts(job) == {"to": 4, "be": 4, "or": 2, "not": 2}


def test_abort_of_a_job_that_does_not_run_says_so(job: Job) -> None:
    job.run(WORDS)
    shown = job.call("abort", job.name, "--yes")
    assert "No driver ran; epoch 2 is open" in shown
    assert "Nothing was staged." in shown
    assert "Batch 1 is committed and published." in shown
    assert "add --yes" in job.call("abort", job.name, status=1)


@pytest.fixture
def committed(rocketmq: Cluster, tmp_path: Path) -> Iterator[tuple[Job, LocalDriver]]:
    """A job whose driver has committed a batch, and published nothing of it yet."""
    with Client(rocketmq.namesrv) as client:

        def topic(queues: int = 1) -> str:
            name = f"abort-{time.time_ns()}"
            Admin(client).create_topic(name, queues=queues)
            return name

        job = Job(Rig(rocketmq.namesrv, client, tmp_path, topic))
        job.rig.send(job.lines, WORDS)
        with job.driver() as driver:
            driver._job.transactions.commit(driver.process())
            assert counts(job) == {}
            yield job, driver


def publish_state(job: Job, driver: LocalDriver) -> None:
    """Publish what is committed but for the results, as a driver that dies in between."""
    transactions: Any = driver._job.transactions
    record = transactions._last
    wanted = totals(record.parts)
    results = {queue: count for queue, count in wanted.items() if queue.startswith(job.counts)}
    assert 0 < len(results) < len(wanted)
    transactions._publisher._copy(record, wanted, dict.fromkeys(wanted, 0) | results)
    await_true("state", lambda: transactions.shows_state(record))


def close_when_fenced(job: Job, driver: LocalDriver) -> None:
    """Be a driver that finds out that another one has opened an epoch."""
    with Client(job.rig.namesrv) as client:
        while standing_of_job(client, job.name).record.epoch == driver.epoch:
            time.sleep(0.05)
    driver._job.transactions.close()


@pytest.mark.rocketmq
def test_abort_publishes_what_is_committed(committed: tuple[Job, LocalDriver]) -> None:
    job, driver = committed
    assert job.ask("status", job.name)["published"] is False
    assert "It is not wholly published" in job.call("status", job.name)
    publish_state(job, driver)
    assert job.ask("status", job.name)["published"] is False
    # It notices that it is fenced off, and ends, while the command waits for it.
    ending = threading.Thread(target=close_when_fenced, args=(job, driver))
    ending.start()
    done = job.ask("abort", job.name, "--yes")
    ending.join()
    assert (done["was_running"], done["published"], done["batch"]) == (True, True, 1)
    assert counts(job) == {"to": 2, "be": 2, "or": 1, "not": 1}
    told = job.ask("status", job.name)
    assert (told["published"], told["running"]) == (True, False)
    job.run(WORDS)
    assert counts(job) == {"to": 4, "be": 4, "or": 2, "not": 2}


@pytest.mark.rocketmq
def test_abort_outwaits_a_driver_that_does_not_end(
    committed: tuple[Job, LocalDriver], caplog: pytest.LogCaptureFixture
) -> None:
    job, driver = committed
    done = abort(
        job.rig.client, job.name, patience=timedelta(seconds=0.5), times=LeaseTimes(expiry=2)
    )
    assert done.published
    assert "its lease is taken from it" in caplog.text
    assert counts(job) == {"to": 2, "be": 2, "or": 1, "not": 1}
    with pytest.raises(FencedError):
        driver._job.transactions.commit(driver.process())


def test_what_a_job_has_published_is_read_as_committed(job: Job) -> None:
    for _ in range(2):
        job.run(WORDS)
    command = ["consume", job.counts, "--committed", "--from-beginning", "--until-end"]
    done = CliRunner().invoke(app, [*command, "--namesrv", job.rig.namesrv])
    assert done.exit_code == 0, done.output
    expected = {"to": (2, 4), "be": (2, 4), "or": (1, 2), "not": (1, 2)}
    lines = [f"{word}\t{count}" for word, found in expected.items() for count in found]
    assert sorted(done.stdout.splitlines()) == sorted(lines)
