"""A task beside its engine: its query begins once, and not when the task ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.connect.channel import Request, StartQuery, StopQuery
from headrace.connect.data.plane import QueryTask
from headrace.connect.lifecycle import HostEvent, Listens, SeekAsked
from headrace.connect.worker.launching import HostSpec

pytestmark = pytest.mark.anyio


class Engine:
    """Takes what a task asks for, once it is open."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.asked: list[Request] = []

    async def ask(self, make: Callable[[int], Request]) -> Any:
        await self.opened.wait()
        self.asked.append(make(len(self.asked)))


class Plane:
    """What a task has of its data plane."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.work: list[asyncio.Task[Any]] = []

    def spawn(self, work: Any) -> None:
        self.work.append(asyncio.ensure_future(work))


def made() -> tuple[QueryTask, Plane, list[HostEvent]]:
    told: list[HostEvent] = []
    plane = Plane()
    spec = HostSpec(
        kind="task",
        connector="orders",
        kept_as="orders/5",
        task=0,
        generation=7,
        config={},
        role="source",
    )
    task = QueryTask(cast("Any", plane), spec, told.append)
    return task, plane, told


async def test_a_query_that_ends_while_it_begins_anew_begins_once() -> None:
    task, plane, _ = made()
    task.hear(Listens(address="there"))
    plane.engine.opened.set()
    await asyncio.gather(*plane.work)
    await asyncio.gather(task.begin_again("the broker is away"), task.begin_again())
    assert [type(one) for one in plane.engine.asked] == [StartQuery, StartQuery]
    assert {one.kept_as for one in plane.engine.asked if isinstance(one, StartQuery)} == {
        "orders/5"
    }


async def test_a_task_that_goes_back_has_its_query_ended_before_it_begins_anew() -> None:
    task, plane, told = made()
    plane.engine.opened.set()
    task.hear(Listens(address="there"))
    await asyncio.gather(*plane.work)
    task.hear(SeekAsked())
    await asyncio.gather(*plane.work)
    assert [type(one) for one in plane.engine.asked] == [StartQuery, StopQuery, StartQuery]
    assert told == []


async def test_a_task_that_ends_while_its_engine_starts_does_not_begin() -> None:
    task, plane, told = made()
    task.hear(Listens(address="there"))
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(task.end_query())
    await asyncio.sleep(0)
    plane.engine.opened.set()
    await asyncio.gather(*plane.work, ending)
    assert [type(one) for one in plane.engine.asked] == [StopQuery]
    assert told == []


async def test_a_query_that_begins_anew_is_paused_if_its_task_is() -> None:
    task, plane, _ = made()
    task.host = cast("Any", SimpleNamespace(pause=lambda *, paused: None))
    plane.engine.opened.set()
    task.pause(paused=True)
    task.hear(Listens(address="there"))
    await asyncio.gather(*plane.work)
    task.pause(paused=False)
    await task.begin_again()
    await asyncio.gather(*plane.work)
    starts = [one.paused for one in plane.engine.asked if isinstance(one, StartQuery)]
    assert starts == [True, False]
