"""Jobs whose state lies in stores of a user's own kind."""

from __future__ import annotations

from collections import Counter

from headrace import serdes
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver
from tests.runtime.test_state_stores import ReplayedStore
from tests.spark.pipelines import Rig

LINES = [f"word-{number * number % 37} word-{number % 11}" for number in range(60)]


def job_of(lines: str, counts: str) -> Topology:
    builder = StreamBuilder(f"own-{lines}")
    words = builder.source(lines, serdes.string).flat_map_values(str.split).key_by(str.lower)
    words.count(name="words").to_stream().sink(counts, serdes.json)
    return builder.build()


def test_job_counts_exactly_over_a_take_over(rig: Rig) -> None:
    lines, counts = rig.topic(queues=1), rig.topic(queues=1)
    job = job_of(lines, counts)
    rig.send(lines, LINES[:30])
    with LocalDriver(rig.namesrv, rig.folder, 10, job=job, stores=ReplayedStore) as driver:
        driver.commit(driver.process())
        if rig.client.is_headrace():
            # Staged, never committed: the next driver does it again.
            driver.process()
    rig.send(lines, LINES[30:])
    with LocalDriver(rig.namesrv, rig.folder, job=job, stores=ReplayedStore) as driver:
        driver.catch_up()
    expected = Counter(word for line in LINES for word in line.split())
    assert rig.latest(counts) == expected
    assert not list(rig.folder.rglob("db"))
    with CommittedState(StateHome.of(job.name, rig.client), "words") as view:
        assert dict(view.range()) == expected
