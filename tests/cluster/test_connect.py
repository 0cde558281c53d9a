"""Three workers of Connect on three machines, one of which is cut off for a minute under load."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.brokers import OneBroker, environment, headrace
from tests.cluster.machines import SHARED, Network, Running, why_not
from tests.cluster.spark_cluster import MARKS
from tests.cluster.witness import Said, read_said
from tests.connect.chaos import marked
from tests.connect.chaos.marked import read_marks
from tests.connect.chaos.test_chaos import copies_that_overlap
from tests.faults.harness import at_most, await_true

#: How long the machine is cut off, s.
CUT = 60.0
#: What docs/explanation/connect-control.md says of workers that are told no times, from the cut
#: on, s: until it is noticed, until a worker has ended what it ran, until that runs elsewhere.
NOTICED, FENCED, MOVED = 15.0 + 2 * 2.0, 24.0, 60.0
#: How soon a worker that is back has its share again, s.
SHARED_AGAIN = 30.0
#: What the one is called that is cut off: it has told no name, so that of its machine and its port.
ITS_ID = "worker-1:8083"
#: Rows per second, and tasks of each of the two connectors.
RATE, TASKS = 300, 3
_WORKERS = ("worker-1", "worker-2", "worker-3")
_PATIENCE = 240

pytestmark = MARKS


class Group:
    """Workers on machines, each with a witness, and a folder that all of them reach."""

    def __init__(self, network: Network, namesrv: str, shared: Path) -> None:
        self.network, self._namesrv, self._shared = network, namesrv, shared
        self.workers: dict[str, Running] = {}

    def start(self) -> None:
        """Boot the machines, and wait until their workers are ready."""
        for name in _WORKERS:
            machine = self.network.boot(name, shared=self._shared)
            place = ("--group", "apart", "--namesrv", self._namesrv, "--call-timeout", "60 s")
            more = ("--plugins", marked.__name__, "--master", "local[2]")
            command = headrace("connect", "worker", *place, *more)
            self.workers[name] = machine.start(*command, env=environment())
        for name, worker in self.workers.items():
            worker.await_output("worker listening on", _PATIENCE)
            words = (sys.executable, "-m", "tests.cluster.witness")
            self.network[name].start(*words, env=environment())

    def command(self, *words: object, on: str) -> Running:
        """Start one of Headrace's commands on a machine, which asks the worker there."""
        return self.network[on].start(*headrace("connect", *words), env=environment())

    def put(self, name: str, config: dict[str, str], *, on: str = "worker-2") -> None:
        """Give a connector a config."""
        pairs = [f"{key}={value}" for key, value in config.items()]
        command = self.command("create", name, *pairs, "--update", on=on)
        assert command.end(60) == 0, command.output()

    def said(self, name: str, since: float = 0.0) -> list[Said]:
        """Give what a worker has said since a time."""
        return [said for said in read_said(self.network[name].folder) if said.at >= since]

    def is_shared(self) -> bool:
        """Tell whether all tasks run, and each worker has some, as all three of them say."""
        for name in _WORKERS:
            said = self.said(name)
            owners = said[-1].owners() if said else {}
            if len(owners) != 2 * TASKS or len(set(owners.values())) != len(_WORKERS):
                return False
        return True

    def ids(self) -> Counter[int]:
        """Count the ids in the lines that the sink has written: one for each record of the topic."""
        files = self._shared.glob("lines-*.txt")
        lines = (line for file in files for line in file.read_bytes().splitlines(keepends=True))
        # The last line of each may be half written.
        return Counter(json.loads(line)["id"] for line in lines if line.endswith(b"\n"))

    def marks(self) -> list[marked.Mark]:
        """Give what all tasks have said of their lives."""
        return list(read_marks(self._shared / "marks"))

    def starts(self) -> Counter[tuple[str, int]]:
        """Count how often each task has started."""
        return Counter((one.connector, one.task) for one in self.marks() if one.what == "start")

    def make_rows(self, rate: int, **more: str) -> None:
        """Have the source make rows, so many a second."""
        config = {
            "connector.class": f"{marked.__name__}.MarkedDatagen",
            "topic": "rows",
            "fields": '{"id": "sequence"}',
            "partitions": str(TASKS),
            "tasks.max": str(TASKS),
            "rate": str(rate),
            "marks": str(SHARED / "marks"),
        }
        self.put("source", config | more)

    def write_lines(self) -> None:
        """Have the sink write what is in the topic."""
        config = {
            "connector.class": f"{marked.__name__}.MarkedFileSink",
            "topics": "rows",
            "file": str(SHARED / "lines-{task}.txt"),
            "tasks.max": str(TASKS),
            "value.converter": "json",
            "value.converter.schemas.enable": "false",
            "marks": str(SHARED / "marks"),
        }
        self.put("sink", config)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("group")
    shared = folder / "shared"
    shared.mkdir()
    brokers = OneBroker()
    with Network(folder, [*brokers.machines, *_WORKERS]) as network:
        for name in brokers.machines:
            network.boot(name)
        group = Group(network, brokers.start(network), shared)
        group.start()
        yield group


@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
@pytest.mark.budget(180)
def test_a_worker_that_is_cut_off_for_a_minute_costs_no_row_and_runs_nothing_twice(
    group: Group,
) -> None:
    group.make_rows(RATE)
    group.write_lines()
    await_true("all three share the tasks", group.is_shared, patience=_PATIENCE)
    await_true("lines are written", lambda: len(group.ids()) > RATE, patience=_PATIENCE)
    # The first by name is the one that shares the work out.
    owners = group.said("worker-2")[-1].owners()
    its = {unit for unit, worker in owners.items() if worker == ITS_ID}
    before, began = group.starts(), time.time()
    group.network["worker-1"].cut()
    time.sleep(CUT * 0.75)
    refused = group.command("pause", "source", on="worker-1")
    assert refused.end(CUT) == 1
    assert "has been cut off from" in refused.output()
    time.sleep(max(0.0, began + CUT - time.time()))
    await_true("others run what it ran", lambda: run_elsewhere(group, its), patience=_PATIENCE)
    began_anew = {unit for unit, count in group.starts().items() if count > before[unit]}
    group.network["worker-1"].mend()
    mended = time.time()
    await_true("it has its share again", group.is_shared, patience=_PATIENCE)
    shared_after = time.time() - mended
    noticed, moved = told_by_others(group, its, began)
    fenced = told_by_itself(group, its, began, mended)
    print(
        f"noticed after {noticed:.1f} s, ended after {fenced:.1f} s, elsewhere after {moved:.1f} s,"
        f" its share {shared_after:.1f} s after the mend"
    )
    assert fenced < moved
    assert noticed < at_most(NOTICED)
    assert fenced < at_most(FENCED)
    assert moved < at_most(MOVED)
    assert shared_after < at_most(SHARED_AGAIN)
    # What had a living worker stayed there.
    assert began_anew == its
    told = group.workers["worker-1"].output()
    assert "others may run its tasks by now" in told
    assert "has joined its cluster again" in told
    rows = 2 * max(group.ids()) + 1000
    group.make_rows(0, count=str(rows))
    await_true("all rows are there", lambda: len(group.ids()) >= rows, patience=_PATIENCE)
    time.sleep(1.0)  # one that comes twice would come now
    assert group.ids() == Counter(range(rows))
    assert copies_that_overlap(group.marks()) == []


def run_elsewhere(group: Group, its: set[tuple[str, int]]) -> bool:
    owners = group.said("worker-2")[-1].owners()
    return its <= {unit for unit, worker in owners.items() if worker != ITS_ID}


def told_by_others(group: Group, its: set[tuple[str, int]], began: float) -> tuple[float, float]:
    """Give when the others said that a worker is gone, and when all that it ran ran elsewhere."""
    noticed = moved = None
    for said in group.said("worker-2", began):
        assert said.health == 200, said.why
        tasks = [said.tasks()[unit] for unit in sorted(its)]
        if noticed is None and all(task == ("UNASSIGNED", ITS_ID) for task in tasks):
            noticed = said.at
        if noticed is not None and moved is None:
            assert ("RUNNING", ITS_ID) not in tasks
            if {state for state, _ in tasks} == {"RUNNING"}:
                moved = said.at
        assert {state for state, _ in tasks} <= {"RUNNING", "UNASSIGNED"}, tasks
    assert noticed is not None, "nobody has said that it is gone"
    assert moved is not None, "nobody runs what it ran"
    return noticed - began, moved - began


def told_by_itself(group: Group, its: set[tuple[str, int]], began: float, mended: float) -> float:
    """Give when a worker that is cut off said that nothing of it runs any more."""
    said = [one for one in group.said("worker-1", began) if one.at < mended]
    away = [one for one in said if one.health == 500 and "cut off" in one.why]
    assert away, [one.why for one in said]
    # Once it has said so, it says nothing else until the cut is over.
    assert away == [one for one in said if one.at >= away[0].at]
    ended = [one.at for one in said if its.isdisjoint(one.owners())]
    assert ended, "it says that its tasks run"
    assert ended == [one.at for one in said if one.at >= ended[0]]
    return ended[0] - began
