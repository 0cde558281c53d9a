"""A copy is started only when the log says so, and nothing that came before speaks against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from headrace.connect.lifecycle import Phase
from headrace.connect.log import CompactedRecord, ConnectorDeleted, Record, StatusSet
from headrace.connect.worker import HostSpec
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.running import OwnLog, started
from tests.connect.waiting import eventually, until_running


class OvertakenLog(OwnLog):
    """A log into which another worker writes just before a task is claimed."""

    def __init__(self, before: Callable[[StatusSet], Record]) -> None:
        super().__init__()
        self._before: Callable[[StatusSet], Record] | None = before
        self.said: list[StatusSet] = []

    async def append(self, record: Record | CompactedRecord) -> int:
        if isinstance(record, StatusSet):
            if record.task == 0 and record.phase is Phase.PENDING and self._before is not None:
                before, self._before = self._before, None
                await super().append(before(record))
            self.said.append(record)
        return await super().append(record)

    def told(self) -> list[tuple[Phase, bool]]:
        """What the worker has said of the task."""
        return [(one.phase, one.gone) for one in self.said if one.task == 0]


@pytest.mark.requirement(22)
def test_of_two_workers_that_want_a_task_the_one_whose_claim_comes_first_runs_it() -> None:
    claims: list[StatusSet] = []

    def of_another(claim: StatusSet) -> StatusSet:
        claims.append(msgspec.structs.replace(claim, worker="w2"))
        return claims[-1]

    async def scenario() -> None:
        launcher, log = FakeLauncher(), OvertakenLog(of_another)
        async with started(launcher, log) as connect:
            await connect.create("a", config_of(CHAOS))
            # It says once more what came behind the word of another.
            claimed = [(Phase.PENDING, False), (Phase.PENDING, False), (Phase.NEW, True)]
            await eventually(lambda: log.told() == claimed)
            await asyncio.sleep(0.2)
            assert launcher.of("a", 0) == []
            read = await log.end() - 1
            ended = msgspec.structs.replace(claims[0], phase=Phase.STOPPED, gone=True, read=read)
            await log.append(ended)
            await until_running(connect, "a")
            assert len(launcher.of("a", 0)) == 1

    asyncio.run(scenario())


@pytest.mark.requirement(22)
def test_what_was_deleted_before_its_claim_does_not_start() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        log = OvertakenLog(lambda _: ConnectorDeleted(request="d", name="a"))
        async with started(launcher, log) as connect:
            await connect.create("a", config_of(CHAOS))
            await eventually(lambda: log.told() == [(Phase.PENDING, False), (Phase.NEW, True)])
            await eventually(lambda: launcher.alive("a", None) == [])
            assert launcher.of("a", 0) == []

    asyncio.run(scenario())


def test_nothing_is_launched_that_the_log_does_not_tell_of() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        told: list[bool] = []

        def look(spec: HostSpec) -> None:
            entry = connect.worker.view.connector(spec.connector)
            assert entry is not None
            status = entry.status(spec.task)
            told.append(status is not None and status.phase is Phase.PENDING)

        launcher.refuse = look
        async with started(launcher) as connect:
            await connect.create("a", config_of(CHAOS))
            await until_running(connect, "a")
        assert told == [True, True]

    asyncio.run(scenario())
