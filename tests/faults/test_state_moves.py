"""State that moves: to other partitions, to other names, and what a start refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import serdes
from headrace.errors import PartitionCountError, StateError
from headrace.runtime import StateMigration
from headrace.runtime.commit.drivers import Lease
from headrace.runtime.jobs.reset import rescale
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

LINES = [f"word-{number * number % 37} word-{number % 11}" for number in range(60)]


def counting(job: str, lines: str, counts: str, *, name: str = "words") -> Topology:
    builder = StreamBuilder(job)
    words = builder.source(lines, serdes.string).flat_map_values(str.split).key_by(str.lower)
    words.count(name=name).to_stream().sink(counts, serdes.json)
    return builder.build()


def expected(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def run(rig: Rig, job: Topology, **given: Any) -> LocalDriver:
    with LocalDriver(rig.namesrv, rig.folder, job=job, **given) as driver:
        driver.catch_up()
    return driver


def entries(rig: Rig, job: str, store: str, folder: Path) -> list[dict[bytes, bytes]]:
    """What a store's partitions hold by their topic alone."""
    home = StateHome.of(job, rig.client)
    record = home.record()
    copies = home.copies([store], folder)
    found = []
    for summary in record.states:
        if summary.store == store:
            copy = copies.open(store, summary.partition, summary, record.lineage)
            found.append(dict(copy.base.scan()))
            copy.close()
    return found


def test_results_are_exact_over_a_rescale_up_and_down(rig: Rig, tmp_path: Path) -> None:
    lines, counts = rig.topic(), rig.topic()
    job = counting(f"scale-{lines}", lines, counts)
    sent: list[str] = []
    done: list[tuple[int, int]] = []
    view: CommittedState | None = None
    for partitions in (2, 5, 3, 1, 4):
        if sent:
            home = StateHome.of(job.name, rig.client)
            # It was opened before the job had the queues that it gets.
            view = view or CommittedState(StateHome.of(job.name, rig.client), "words")
            assert view.all() == expected(sent)
            record = rescale(home, partitions, lambda *at: done.append(at))
            assert view.all() == expected(sent)
            assert record.partitions == partitions
            held = entries(rig, job.name, "words", tmp_path / f"scaled-{partitions}")
            assert len(held) == partitions
            assert sum(map(len, held)) == len(expected(sent))
        rig.send(lines, LINES)
        sent += LINES
        # The local copies of every earlier number of partitions are still there.
        run(rig, job, partitions=partitions)
        assert rig.latest(counts) == expected(sent)
    assert done[-1] == (len(expected(LINES)),) * 2
    assert view is not None
    view.close()


def test_start_with_another_number_names_the_command(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    job = counting(f"scale-{lines}", lines, counts)
    rig.send(lines, LINES)
    run(rig, job)
    for partitions in (1, 3):
        with pytest.raises(
            PartitionCountError, match=f"rescale {job.name} --partitions {partitions}"
        ):
            run(rig, job, partitions=partitions)


def test_rescale_is_refused_while_a_driver_holds_the_job(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    job = counting(f"held-{lines}", lines, counts)
    rig.send(lines, LINES)
    run(rig, job)
    lease = Lease(rig.client, job.name, "a-driver")
    assert lease.acquire()
    with pytest.raises(StateError, match=r"driver of job .* is running"):
        rescale(StateHome.of(job.name, rig.client), 4)
    lease.release()
    assert rescale(StateHome.of(job.name, rig.client), 4).partitions == 4


def test_job_without_a_commit_cannot_be_rescaled(rig: Rig) -> None:
    with pytest.raises(StateError, match="has committed nothing"):
        rescale(StateHome.of("nobody", rig.client), 4)


def test_rescale_that_fails_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, counts = rig.topic(), rig.topic()
    job = counting(f"failed-{lines}", lines, counts)
    rig.send(lines, LINES)
    run(rig, job)
    home = StateHome.of(job.name, rig.client)

    def lost(_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(home.transactions, "commit", lost)
    with pytest.raises(ConnectionError):
        rescale(home, 5)
    rig.send(lines, LINES)
    run(rig, job)
    assert rig.latest(counts) == expected(LINES * 2)


def test_lost_operator_is_refused_with_the_difference(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    name = f"lost-{lines}"
    rig.send(lines, LINES)
    run(rig, counting(name, lines, counts))
    with pytest.raises(StateError) as refused:
        run(rig, counting(name, lines, counts, name="renamed"))
    message = str(refused.value)
    assert f"words is gone ({len(expected(LINES))} entries)" in message
    assert "renamed is new" in message
    assert "--allow-state-loss" in message


def test_changed_state_is_refused_with_the_difference(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    name = f"changed-{lines}"
    rig.send(lines, LINES)
    run(rig, counting(name, lines, counts))
    builder = StreamBuilder(name)
    words = builder.source(lines, serdes.string).flat_map_values(str.split).key_by(str.lower)
    words.reduce(max, name="words", serde=serdes.string).to_stream().sink(counts, serdes.string)
    with pytest.raises(
        StateError, match="words has changed: kind count -> reduce, state int -> st"
    ):
        run(rig, builder.build())


def test_renamed_operator_goes_on_with_its_state(rig: Rig, tmp_path: Path) -> None:
    lines, counts = rig.topic(), rig.topic()
    name = f"renamed-{lines}"
    rig.send(lines, LINES)
    run(rig, counting(name, lines, counts))
    for _ in range(2):
        # Given again after it was done, it does no harm.
        rig.send(lines, LINES)
        run(rig, counting(name, lines, counts, name="total"), migrate={"words": "total"})
    assert rig.latest(counts) == expected(LINES * 3)
    assert not any(entries(rig, name, "words", tmp_path / "old"))


def test_migration_changes_and_drops_values(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    name = f"moved-{lines}"
    rig.send(lines, LINES)
    run(rig, counting(name, lines, counts))
    migration = StateMigration(
        to="other",
        function=lambda key, count: None if key == "word-0" else 1000 * count,
        old=serdes.int,
        new=serdes.int,
    )
    rig.send(lines, LINES)
    job = counting(name, lines, counts, name="other")
    run(rig, job, migrate={"words": migration})
    once = expected(LINES)
    assert rig.latest(counts) == {
        word: (0 if word == "word-0" else 1000 * count) + count for word, count in once.items()
    }


def test_allowed_loss_starts_the_operator_anew(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    name = f"dropped-{lines}"
    rig.send(lines, LINES)
    run(rig, counting(name, lines, counts))
    other = counting(name, lines, counts, name="other")
    rig.send(lines, LINES[:20])
    run(rig, other, allow_state_loss=True)
    assert rig.latest(counts) | expected(LINES[:20]) == rig.latest(counts)
    # The old name comes back empty, not with what it had.
    rig.send(lines, LINES[:20])
    run(rig, counting(name, lines, counts), allow_state_loss=True)
    found = rig.latest(counts)
    assert {word: found[word] for word in expected(LINES[:20])} == expected(LINES[:20])


def test_migration_to_an_operator_that_is_not_there_is_refused(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    with pytest.raises(StateError, match="no such operator: it has words"):
        run(rig, counting(f"odd-{lines}", lines, counts), migrate={"words": "nobody"})
