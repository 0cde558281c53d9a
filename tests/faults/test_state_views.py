"""Looking into state from outside: views, files, the commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace import serdes
from headrace.cli.app import app
from headrace.errors import StateError
from headrace.runtime.jobs.reset import exported, import_state
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.streams import StreamBuilder
from headrace.topology import Accumulator, Topology
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

WORDS = ["apple", "apple pie", "apricot", "bee", "beer"]


class Mean(Accumulator[int, float]):
    def __init__(self) -> None:
        self.total = self.count = 0

    def add(self, value: int) -> None:
        self.total += value
        self.count += 1

    def result(self) -> float:
        return self.total / self.count


def job_of(rig: Rig) -> Topology:
    values, out = rig.topic(), rig.topic()
    builder = StreamBuilder(f"views-{values}")
    numbers = builder.source(values, serdes.json).key_by(lambda value: value["k"])
    numbers.count(name="count").to_stream().sink(out, serdes.json)
    numbers.map_values(lambda value: value["n"]).aggregate(Mean, name="mean").to_stream().sink(
        out, serdes.json
    )
    return builder.build()


def send(rig: Rig, job: Topology, pairs: list[tuple[Any, int]]) -> None:
    (source,) = job.sources
    rig.send(str(source.topic), [json.dumps({"k": key, "n": number}) for key, number in pairs])


def run(rig: Rig, job: Topology) -> None:
    with LocalDriver(rig.namesrv, rig.folder, job=job) as driver:
        driver.catch_up()


def view(rig: Rig, job: Topology, operator: str, *, known: bool = False) -> CommittedState:
    home = StateHome.of(job.name, rig.client)
    return CommittedState(home, operator, job.operator(operator) if known else None)


def test_view_follows_the_commits_of_a_running_job(rig: Rig) -> None:
    job = job_of(rig)
    send(rig, job, [("a", 1), ("b", 2)])
    with LocalDriver(rig.namesrv, rig.folder, job=job) as driver:
        driver.catch_up()
        with view(rig, job, "count") as counts:
            assert (counts.get("a"), counts.get("nobody"), len(counts)) == (1, None, 2)
            send(rig, job, [("a", 5), ("c", 9)])
            batch = driver.process()
            # Staged, not committed: nobody sees it.
            assert (counts.get("a"), counts.get("c")) == (1, None)
            driver.commit(batch)
            assert (counts.get("a"), counts.get("c"), len(counts)) == (2, 1, 3)


def test_results_are_read_by_the_operator_where_the_program_is_at_hand(rig: Rig) -> None:
    job = job_of(rig)
    send(rig, job, [("a", 1), ("a", 2)])
    run(rig, job)
    with view(rig, job, "mean", known=True) as means:
        assert means.get("a") == 1.5
    with view(rig, job, "mean") as raw:
        assert raw.get("a") == {"total": 3, "count": 2}


def test_ranges_and_prefixes_are_in_the_order_of_the_keys(rig: Rig) -> None:
    job = job_of(rig)
    keys = [*WORDS, 2, -3, 300, 10, 1.5]
    send(rig, job, [(key, 0) for key in keys])
    run(rig, job)
    with view(rig, job, "count") as counts:
        assert [key for key, _ in counts.prefix("ap")] == ["apple", "apple pie", "apricot"]
        assert [key for key, _ in counts.prefix("bee")] == ["bee", "beer"]
        assert [key for key, _ in counts.range("apple", "bee")] == WORDS[:3]
        assert [key for key, _ in counts.range("apricot")] == WORDS[2:]
        assert [key for key, _ in counts.range(stop="b")] == WORDS[:3]
        assert [key for key, _ in counts.range("b", "a")] == []
        assert list(counts.range(-5, 11)) == [(-3, 1), (2, 1), (10, 1)]
        assert len(list(counts.range())) == len(list(counts.scan())) == len(keys)
        moment = datetime(2024, 1, 1, tzinfo=UTC)
        assert list(counts.window("apple", moment, moment)) == []


def test_unknown_state_is_named(rig: Rig) -> None:
    job = job_of(rig)
    with pytest.raises(StateError, match="has committed nothing"):
        view(rig, job, "count")
    send(rig, job, [("a", 1)])
    run(rig, job)
    with pytest.raises(StateError, match="it has state of count, mean"):
        view(rig, job, "cuont")


def test_export_and_import_bring_state_back(rig: Rig) -> None:
    job = job_of(rig)
    send(rig, job, [(word, 1) for word in WORDS])
    run(rig, job)
    with view(rig, job, "count") as counts:
        kept = list(exported(counts))
    send(rig, job, [*((word, 1) for word in WORDS[:2]), ("new", 1)])
    run(rig, job)
    assert import_state(StateHome.of(job.name, rig.client), "count", kept) == len(WORDS)
    with view(rig, job, "count") as counts:
        assert dict(counts.range()) == dict.fromkeys(WORDS, 1)
        assert len(counts) == len(WORDS)
    send(rig, job, [("bee", 1), ("new", 1)])
    run(rig, job)
    with view(rig, job, "count") as counts:
        assert (counts.get("bee"), counts.get("new")) == (2, 1)


def test_import_refuses_what_export_did_not_write(rig: Rig) -> None:
    job = job_of(rig)
    send(rig, job, [("a", 1)])
    run(rig, job)
    home = StateHome.of(job.name, rig.client)
    for wrong in ('{"key": 1}', "[" * 5000):
        with pytest.raises(StateError, match="line 2 is no entry"):
            import_state(home, "count", ['{"key": "aQ==", "value": "aQ=="}', wrong])
    with pytest.raises(StateError, match="no state of an operator 'nobody'"):
        import_state(home, "nobody", [])


def test_commands_show_keep_and_bring_back_state(rig: Rig, tmp_path: Path) -> None:
    job = job_of(rig)
    send(rig, job, [*((word, 1) for word in WORDS), (7, 1)])
    run(rig, job)

    def call(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments, "--namesrv", rig.namesrv])
        assert done.exit_code == status, done.output
        return done.stdout

    assert json.loads(call("state", "get", job.name, "count", "bee")) == {"key": "bee", "value": 1}
    assert json.loads(call("state", "get", job.name, "count", "7", "--json"))["value"] == 1
    call("state", "get", job.name, "count", "7", status=1)
    lines = call("state", "scan", job.name, "count", "--prefix", "be").splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["bee", "beer"]
    assert len(call("state", "scan", job.name, "count", "--limit", "2").splitlines()) == 2
    kept = tmp_path / "count.jsonl"
    call("state", "export", job.name, "count", "--output", str(kept))
    assert len(kept.read_text().splitlines()) == 6
    call("state", "import", job.name, "count", str(kept))
    call("job", "rescale", job.name, "--partitions", "3")
    with view(rig, job, "count") as counts:
        assert dict(counts.range()) == dict.fromkeys([7, *WORDS], 1)
