"""Threads of a driver on RocketMQ, played in the one thread that there is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from headrace.errors import HeadraceError
from headrace.runtime.commit.journal import publishing
from headrace.runtime.commit.lease import Lease
from tests.proof.simulation.world import Killed, World


class InlinePool:
    """Stands in for a pool of threads: what is handed in is done at once."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, run: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(run(*args))
        except HeadraceError as error:
            future.set_exception(error)
        return future

    def map(self, run: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        return [run(*each) for each in zip(*items, strict=False)]

    def shutdown(self) -> None:
        """Do nothing."""


@contextmanager
def threads_of(world: World) -> Iterator[None]:
    """Play leases' keepers as events, and pools of threads one by one."""

    def keep(lease: Lease) -> None:
        process = world.current
        assert process is not None
        if vars(lease).setdefault("_simulated", False):
            return
        vars(lease)["_simulated"] = True

        def renew() -> None:
            if process.dead or lease._over.is_set():
                return
            if process.asleep:
                world.at(world.now + 0.1, renew)
                return
            try:
                with world.inside(process):
                    lease.acquire()
            except (HeadraceError, Killed):
                world.tell(f"{process.name} could not renew its lease")
            world.at(world.now + lease._renewal, renew)

        world.at(world.now + lease._renewal, renew)

    really_wait = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if not event.is_set():
            assert timeout is not None, "nobody else would ever set it"
            time.sleep(timeout)
        return event.is_set()

    with ExitStack() as stack:
        mine = world.only_here(wait, really_wait)
        stack.enter_context(patch.object(threading.Event, "wait", mine))
        stack.enter_context(patch.object(publishing, "ThreadPoolExecutor", InlinePool))
        stack.enter_context(patch.object(Lease, "keep", keep))
        yield
