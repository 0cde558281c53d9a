"""What is told of connectors whose worker is gone."""

from __future__ import annotations

import asyncio

import pytest

from headrace.connect.lifecycle import Phase, Target
from headrace.connect.log import AssignmentMade, ConnectorPut, MemoryLog, TargetSet, TasksPut
from headrace.connect.worker import Connect
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.log.samples import status
from tests.connect.running import started
from tests.connect.waiting import states

PUT = ConnectorPut(request="p", name="a", config=config_of(CHAOS))
RUNS, FAILED = Phase.RUNNING, Phase.ERROR


def assignment(generation: int, **lost: int) -> AssignmentMade:
    return AssignmentMade(
        generation=generation,
        log_position=0,
        connectors={"a": "w2"},
        tasks={"a": ["w2", "w2", "w3"]},
        lost=lost,
    )


@pytest.mark.parametrize(
    ("target", "here", "away"),
    [
        (Target.RUNNING, ["RUNNING"] * 3, ["UNASSIGNED", "UNASSIGNED", "RUNNING"]),
        (Target.PAUSED, ["PAUSED"] * 3, ["UNASSIGNED", "UNASSIGNED", "PAUSED"]),
        (Target.STOPPED, ["RUNNING"] * 3, ["UNASSIGNED", "UNASSIGNED", "RUNNING"]),
    ],
)
def test_what_a_worker_ran_that_is_gone_is_unassigned_until_it_moves_or_comes_back(
    target: Target, here: list[str], away: list[str]
) -> None:
    async def scenario() -> None:
        log = MemoryLog()
        await log.append(PUT)
        await log.append(TasksPut(name="a", config_version=1, configs=[{}] * 3))
        await log.append(assignment(1))
        await log.append(status("a", None, 2, RUNS, worker="w2"))
        await log.append(status("a", 0, 2, RUNS, worker="w2"))
        await log.append(status("a", 1, 2, FAILED, worker="w2", gone=True, cause="no table"))
        await log.append(status("a", 2, 2, RUNS, worker="w3"))
        await log.append(TargetSet(request="t", name="a", target=target))

        def told(connect: Connect) -> list[str]:
            found = states(connect, "a")
            return found if target is Target.STOPPED else [*found[:2], found[3]]

        async with started(FakeLauncher(), log) as connect:
            assert told(connect) == here
            await connect.worker.append(assignment(2, w2=99))
            assert told(connect) == away
            if target is Target.RUNNING:
                failed = connect.status("a").tasks[1]
                assert (failed.state, failed.worker_id) == ("FAILED", "w2")
                assert connect.status("a").tasks[0].worker_id == "w2"
            await connect.worker.append(assignment(3))
            assert told(connect) == here

    asyncio.run(scenario())


def test_what_has_stopped_stays_so_when_its_worker_goes() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        await log.append(PUT)
        await log.append(TargetSet(request="t", name="a", target=Target.STOPPED))
        stopped = status("a", None, 0, Phase.STOPPED, worker="w2", gone=True)
        await log.append(stopped)
        async with started(FakeLauncher(), log) as connect:
            await connect.worker.append(assignment(1, w2=99))
            assert states(connect, "a") == ["STOPPED"]

    asyncio.run(scenario())
