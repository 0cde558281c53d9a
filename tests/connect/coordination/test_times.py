"""Three workers with the times that all have who set none: what moves, what stays, and when."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.connect.chaos.marked import Mark
from tests.connect.coordination.test_fencing import Member, Scene, living, until
from tests.faults.harness import at_most

pytestmark = [pytest.mark.slow, pytest.mark.budget(100), pytest.mark.timeout(300)]

TASKS = 6
NAMES = ("w1", "w2", "w3")
#: From the cut to the start of what moves, on a quiet machine, s.
MOST = 55.0


class Trio:
    """Three workers that share six tasks; the first is behind a proxy."""

    def __init__(self, scene: Scene, group: str) -> None:
        self.scene, self._group = scene, group
        self.proxy = scene.proxy()
        self.first, self.second, self.third = [
            scene.worker(name, address, group)
            for name, address in zip(NAMES, (self.proxy.entrance, "", ""), strict=True)
        ]
        scene.put(self.second, "rows", TASKS)
        until(lambda: self.is_shared_by(NAMES))
        # The first may read later of what the others have read already.
        until(lambda: scene.where(self.first, "rows") == scene.where(self.second, "rows"))

    def is_shared_by(self, names: tuple[str, ...]) -> bool:
        places = Counter(self.scene.where(self.second, "rows").values())
        return places == dict.fromkeys(names, TASKS // len(names))

    def starts(self) -> list[Mark]:
        return [mark for mark in self.scene.marks() if mark.what == "start"]

    def again(self, member: Member) -> Member:
        """Start a worker anew that has ended."""
        return self.scene.worker(member.name, "", self._group)


@pytest.fixture
def trio(cluster: Cluster, tmp_path: Path) -> Iterator[Trio]:
    with contextlib.ExitStack() as opened:
        scene = Scene(tmp_path, opened, cluster.namesrv)
        yield Trio(scene, f"trio-{os.getpid()}-{time.monotonic_ns()}")


@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
def test_a_worker_that_is_cut_off_is_replaced_within_a_minute_and_comes_back(trio: Trio) -> None:
    scene = trio.scene
    its, before = scene.pids(trio.first), len(trio.starts())
    assert its
    trio.proxy.cut()
    began = time.monotonic()
    until(lambda: trio.is_shared_by(("w2", "w3")), 200)
    took = time.monotonic() - began
    print(f"{scene.address}: others run it {took:.1f} s after the cut")
    assert living(its) == set()
    assert scene.twice() == []
    # What had a living worker stayed there.
    assert len(trio.starts()) - before == len(its)
    assert took < at_most(MOST)
    trio.proxy.mend()
    until(lambda: trio.is_shared_by(NAMES), 120)
    until(lambda: scene.http.get(f"{trio.first.url}/health").status_code == 200)
    assert scene.twice() == []


@pytest.mark.requirement(53)
def test_a_short_stall_and_a_restart_of_each_worker_move_nothing(trio: Trio) -> None:
    scene = trio.scene
    places, before = scene.where(trio.second, "rows"), trio.starts()
    trio.third.signal(signal.SIGSTOP)
    time.sleep(10)
    trio.third.signal(signal.SIGCONT)
    trio.proxy.cut()
    time.sleep(10)
    trio.proxy.mend()
    # Whatever follows from that follows within a time-out and two looks.
    time.sleep(8)
    assert scene.where(trio.second, "rows") == places
    assert trio.starts() == before

    for member, away in ((trio.third, 0), (trio.first, 18)):
        began = time.monotonic()
        member.stop()
        time.sleep(away)
        again = trio.again(member)
        until(lambda: trio.is_shared_by(NAMES))
        print(f"{scene.address}: {member.name} was away for {time.monotonic() - began:.1f} s")
        assert scene.where(trio.second, "rows") == places
        assert scene.http.get(f"{again.url}/health").status_code == 200
    # Each began only what it had run itself.
    assert len(trio.starts()) - len(before) == 2 * TASKS // 3
    assert scene.twice() == []
