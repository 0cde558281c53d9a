"""The safeguards once more, on Spark: what passes with them is caught without them."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from headrace.client import Client, Jobs
from headrace.errors import PredecessorMismatchError
from headrace.protocol.transactions import CommitRecord, CommitRequest
from tests.faults.broker import make_lines, running_broker, send
from tests.faults.harness import KillTest, await_true, kill_test
from tests.faults.verification import problems, read_results
from tests.faults.word_pipeline import topology
from tests.without import going_without

pytestmark = pytest.mark.slow

SILENCE = [" "] * 40


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "without",
    [
        pytest.param("predecessor", marks=pytest.mark.spark),
        pytest.param("", marks=pytest.mark.soak),
    ],
)
def test_delayed_repeat_of_an_old_commit(tmp_path: Path, without: str) -> None:
    environment = going_without(without)
    with (
        running_broker(tmp_path / "broker", environment=environment) as broker,
        kill_test(tmp_path, broker) as run,
    ):
        send(broker.address, make_lines(40))
        run.start_driver()
        run.await_caught_up()
        for lines in (SILENCE, make_lines(40, first=40)):
            send(broker.address, lines)
            run.await_caught_up()
        assert run.driver.stop() == 0, run.driver.said
        if without:
            repeat_silent_commit(broker.address)
        else:
            with pytest.raises(PredecessorMismatchError):
                repeat_silent_commit(broker.address)
        run.start_driver()
        send(broker.address, make_lines(40, first=80))
        run.await_caught_up()
        assert run.driver.stop() == 0, run.driver.said
        found = problems(read_results(broker.address))
        if without:
            assert any("published more than once" in problem for problem in found), found
        else:
            assert found == []


def repeat_silent_commit(address: str) -> None:
    """Send the commit of a batch that published nothing again, as a network may that was slow."""
    history = read_results(address).history
    record = next(
        after
        for before, after in itertools.pairwise(history)
        if after.kind == "commit" and published(before) == published(after)
    )
    with Client(address) as client:
        Jobs(client, topology.commit_topic).commit(
            CommitRequest(
                commit_topic=topology.commit_topic,
                group=topology.name,
                previous=record.batch - 1,
                parts=[],
                record=record,
            )
        )


def published(record: CommitRecord) -> int:
    return record.counters.get("records_out", 0)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("without", ["", "epoch"])
def test_driver_that_wakes_beside_its_successor(tmp_path: Path, without: str) -> None:
    environment = going_without(without)
    with (
        running_broker(tmp_path / "broker", environment=environment) as broker,
        kill_test(tmp_path, broker) as run,
    ):
        send(broker.address, make_lines(400))
        sleeper = run.start_driver("job.before_commit=stop:3")
        await_true("the sleep before the third commit", sleeper.is_stopped)
        successor = run.take_over("job.before_commit=stop")
        await_true("the pause of the successor", successor.is_stopped)
        sleeper.signal(signal.SIGCONT)
        if without:
            # Its commit fails for another reason, so it opens an epoch of its own and goes on.
            run.await_epoch(3)
            assert "goes on after" in sleeper.said
            return
        assert run.is_fenced(sleeper), sleeper.said
        assert run.standing()[0] == 2
        successor.signal(signal.SIGCONT)
        finish_alone(run)


def finish_alone(run: KillTest) -> None:
    run.await_caught_up()
    assert run.driver.stop() == 0, run.driver.said
    assert problems(read_results(run.broker.address)) == []
