"""Whoever looks after a broker's store: files that are damaged, found, repaired, read again.

What is made from the log may break at any start, and nothing is lost by that.  At the end bytes of
the log itself break: what a repair says is lost, is lost, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CommitLostError, HeadraceError
from headrace.store.damage.examination import examine_store, repair_store
from tests.simulation.checks import NewMessages, require
from tests.simulation.job import JOB
from tests.simulation.world import World

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.store.entries import Loss
    from tests.simulation.cluster import Drivers, EmbeddedCluster

__all__ = ["Caretaker"]

Queue = tuple[str, int]
Messages = dict[Queue, dict[int, tuple[int, bytes]]]
"""Position and body of each message, by queue and offset."""

#: How long what comes after a repair may take, s.
_PATIENCE = 15.0
_COMMITS = f"{JOB}-commitTopic"


class Caretaker:
    """Verifies and repairs the store of a broker between two of its lives.

    Parameters
    ----------
    world, cluster, drivers
        What is looked after, and who runs a job on it.
    """

    def __init__(self, world: World, cluster: EmbeddedCluster, drivers: Drivers) -> None:
        self._world = world
        self._cluster = cluster
        self._drivers = drivers
        cluster.index_file_units = 4
        self._store = cluster.folder / "store"
        self._chance = random.Random(f"{world.seed} damage")
        self._breaks = True

    def before_start(self) -> None:
        """Look at the store, as a process of a broker that is about to open it."""
        if not (self._store / "log").is_dir() or not self._breaks:
            return
        files = self._cluster.files
        trouble, files.trouble = files.trouble, 0
        self._look_after()
        files.trouble = trouble

    def _look_after(self) -> None:
        broken = self._break_one(
            path
            for path in self._files()
            if path.parent.name != "log"
            and path.name not in ("lock", "secret")
            and "damaged" not in path.parts
        )
        ops, deep = self._cluster.files, self._chance.random() < 0.5
        found = examine_store(self._store, deep=deep, ops=ops)
        in_log = [each for each in found.damage if each.path.parent.name == "log"]
        seen = {each.path for each in found.findings}
        is_seen = found.damage or broken in seen or broken is None or _mends_itself(broken)
        require(is_seen, f"nobody sees what is wrong with {broken}")
        if in_log or self._chance.random() < 0.3:
            # A start must do; it cuts off what a power cut has left of writes.
            return
        self._apply_repair()

    def _apply_repair(self) -> list[Loss]:
        """Repair the store, which must be sound then: what is lost."""
        ops = self._cluster.files
        plan = repair_store(self._store, lambda _: True, ops=ops)
        require(plan is not None, "a repair was refused")
        assert plan is not None
        left = examine_store(self._store, deep=True, ops=ops).damage
        require(not left, f"a repair leaves {left}")
        return list(plan.losses)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._store.rglob("*") if path.is_file())

    def _break_one(self, files: Iterable[Path]) -> Path | None:
        """Change a byte of one of some files, or cut it off, or none."""
        there = [path for path in files if path.stat().st_size]
        if not there or self._chance.random() < 0.3:
            return None
        path = self._chance.choice(there)
        content = bytearray(path.read_bytes())
        at = self._chance.randrange(len(content))
        if self._chance.random() < 0.3:
            del content[at:]
        else:
            content[at] ^= 1 << self._chance.randrange(8)
        path.write_bytes(content)
        self._world.tell(f"byte {at} of {path.relative_to(self._store)} breaks")
        return path

    # The end

    def break_log(self) -> None:
        """Break the log, repair it, and hold what is left against what was there.

        Raises
        ------
        ViolationError
            Something is gone that is not said to be, or a job goes on that must not.
        """
        cluster = self._cluster
        for driver in self._drivers.alive:
            driver.kill()
        self._breaks = False
        self._await_broker()
        before = self._read_all()
        assert cluster.process is not None
        cluster.process.kill()
        for _ in range(self._chance.randint(1, 3)):
            self._break_one(path for path in self._files() if path.parent.name == "log")
        losses, end = self._repair()
        before = {queue: _up_to(end, messages) for queue, messages in before.items()}
        cluster.start()
        self._await_broker()
        self._compare(before, self._read_all(), losses)
        self._go_on(before, losses)

    def _await_broker(self) -> None:
        until = self._world.now + _PATIENCE
        self._world.run(lambda: self._cluster.core is not None or self._world.now > until)
        require(self._cluster.core is not None, "the broker does not open its store")

    def _repair(self) -> tuple[list[Loss], int]:
        """Repair the store: what is lost, and where the log ends that cannot be told from torn."""
        found = examine_store(self._store, deep=True, ops=self._cluster.files)
        losses = self._apply_repair()
        said = [loss for each in found.damage for loss in each.losses]
        require(sorted(map(str, said)) == sorted(map(str, losses)), f"{said} is not {losses}")
        self._world.tell(f"repaired; lost: {', '.join(map(str, losses)) or 'nothing'}")
        tails = [
            each.position for each in found.findings if each.severity == "remark" and each.position
        ]
        return losses, min(tails, default=1 << 62)

    def _read_all(self) -> Messages:
        """Read every message of every queue."""
        core = self._cluster.core
        assert core is not None
        return {queue: self._read(core, queue) for queue in sorted(core.store.queues())}

    def _read(self, core: Core, queue: Queue) -> dict[int, tuple[int, bytes]]:
        found = NewMessages().take(core, *queue)
        return {each.queue_offset: (each.position, each.body) for each in found}

    def _compare(
        self,
        before: Messages,
        after: Messages,
        losses: list[Loss],
    ) -> None:
        for queue, messages in before.items():
            lost = {
                offset
                for loss in losses
                if (loss.topic, loss.queue_id) == queue
                for offset in range(loss.first, loss.end)
            }
            there = after.get(queue, {})
            expected = {at: body for at, (_, body) in messages.items() if at not in lost}
            kept = {at: body for at, (_, body) in there.items() if at in messages}
            require(kept == expected, f"{queue} has {kept}, and not {expected}, lost are {lost}")

    def _go_on(self, before: Messages, losses: list[Loss]) -> None:
        """Start the job: where its newest commit is lost, it must not begin anew."""
        ended: list[HeadraceError] = []

        def forgives(error: HeadraceError) -> bool:
            ended.append(error)
            return True

        self._drivers.forgives = forgives
        until = self._world.now + _PATIENCE
        self._world.run(lambda: bool(ended) or self._world.now > until)
        newest = max(before[_COMMITS, 0], default=-1)
        is_lost = any(
            loss.topic == _COMMITS and newest in range(loss.first, loss.end) for loss in losses
        )
        is_closed = any(isinstance(error, CommitLostError) for error in ended)
        require(is_closed == is_lost, f"the newest commit is {newest}, lost are {losses}: {ended}")


def _up_to(end: int, messages: dict[int, tuple[int, bytes]]) -> dict[int, tuple[int, bytes]]:
    return {offset: found for offset, found in messages.items() if found[0] < end}


def _mends_itself(path: Path) -> bool:
    """Tell whether whoever reads a file makes it anew, or goes without it.

    Of an index file a start writes again what no checkpoint vouches for.
    """
    return path.name == "clock" or path.suffix in (".keys", ".idx")
