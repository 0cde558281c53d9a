"""Everything that connectors need fails while rows flow: they say so, go on, and are exact."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.connect.data.faults import FAULTS, Cell, Fault, record
from tests.connect.data.flows import CONNECTORS, Flow, Reading, Scene, running_scene
from tests.connect.servers.s3 import S3Server
from tests.connect.servers.search import SearchServer
from tests.faults.harness import await_true

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.slow]

_PATIENCE = 240.0
#: What was lost at the peer is not waited for as long, s.
_PATIENCE_FOR_LOST = 20.0
#: Between two looks at the status, s.
_LOOK = 1.0
#: What loses rows comes after the others, and what takes long last.
_EVERY = sorted(FAULTS, key=lambda fault: (fault.seconds > 60, fault.loses, fault.seconds))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, storage: S3Server) -> Iterator[Scene]:
    from tests.run.servers import shared

    search = SearchServer(shared("opensearch")["url"])
    with running_scene(tmp_path_factory.mktemp("healing"), storage, search) as made:
        assert set(made.flows) == set(CONNECTORS)
        yield made


class Seen:
    """What status has shown of each connector while something failed."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._next = scene, 0.0
        self.states: dict[str, list[str]] = {name: [] for name in scene.flows}
        #: The last reason that each has given.
        self.reasons = dict.fromkeys(scene.flows, "")
        self.waiting: set[str] = set()

    def look(self) -> None:
        """Look again, where the last look was a while ago."""
        if time.monotonic() < self._next:
            return
        found = self._scene.states()
        self.waiting = {name for name, (_, waits_for) in found.items() if waits_for}
        for name, (state, waits_for) in found.items():
            if state not in self.states[name]:
                self.states[name].append(state)
            self.reasons[name] = waits_for or self.reasons[name]
        self._next = time.monotonic() + _LOOK


class Strike:
    """One fault, from rows that flow to rows that flow again, and what it cost each connector."""

    def __init__(self, scene: Scene, fault: Fault) -> None:
        self._scene, self._fault = scene, fault
        self._flows = {name: scene.flows[name] for name in fault.connectors}
        self.first = self._last = 0
        self.seen = Seen(scene)
        #: Those that did not say what they wait for at the end.
        self.silent: set[str] = set()
        self.moved: dict[str, float] = {}
        #: Those of the tasks before the strike.
        self.hosts: dict[str, tuple[int, int]] = {}

    def run(self) -> dict[str, Cell]:
        """Strike, wait, and count."""
        scene, fault = self._scene, self._fault
        self.first = scene.feeding.count
        for name, flow in scene.flows.items():
            await_true(f"rows through {name}", partial(_has, flow, self.first), _PATIENCE)
        self.hosts = scene.hosts()
        fault.strike(scene)
        over = time.monotonic() + fault.seconds
        while (left := over - time.monotonic()) > 0:
            self.seen.look()
            time.sleep(min(left, 0.1))
        self.silent = set(self._flows) - self.seen.waiting
        self._await_moving()
        return {name: self._cell(name) for name in self._flows}

    def _await_moving(self) -> None:
        fed, began = self._scene.feeding.count, time.monotonic()
        self._fault.end(self._scene)
        left = set(self._scene.flows)
        while left and time.monotonic() < began + _PATIENCE:
            for name in sorted(left):
                self.seen.look()
                if _has(self._scene.flows[name], fed):
                    self.moved[name] = time.monotonic() - began
                    print(f"{self._fault.name}: {name} moves after {self.moved[name]:.1f} s")
                    left.remove(name)
            time.sleep(0.1)
        self._last = self._scene.feeding.count
        self._fault.then(self._scene)

    def _cell(self, name: str) -> Cell:
        flow, window = self._flows[name], range(self.first, self._last)
        comes = name in self.moved and not self._fault.loses
        with suppress(AssertionError):
            await_true(
                f"all of {name}",
                partial(_has_all, flow, window),
                _PATIENCE if comes else _PATIENCE_FOR_LOST,
            )
        given, arrived = flow.given.anew(), flow.arrived.anew()
        return Cell(
            rows_in=sum(n in window for n in given),
            rows_out=sum(n in window for n in arrived),
            doubled=doubled(given, arrived, window),
            lost=missing(given, arrived, window),
            moves_after=round(self.moved[name], 1) if name in self.moved else None,
            states=self.seen.states[name],
            waits_for=self.seen.reasons[name],
        )


def _has(flow: Flow, number: int) -> bool:
    return max(flow.arrived.numbers(), default=-1) >= number


def _has_all(flow: Flow, among: Collection[int]) -> bool:
    return not missing(flow.given.numbers(), flow.arrived.numbers(), among)


def missing(given: list[int], arrived: list[int], among: Collection[int]) -> int:
    left = Counter(n for n in given if n in among)
    left.subtract(n for n in arrived if n in among)
    return sum(count for count in left.values() if count > 0)


def doubled(given: list[int], arrived: list[int], among: Collection[int]) -> int:
    """Count what came more often than it was given; what its origin has lost was given once."""
    often = Counter(n for n in given if n in among)
    found = Counter(n for n in arrived if n in among)
    return sum(max(count - max(often[n], 1), 0) for n, count in found.items())


def endure(scene: Scene, fault: Fault) -> dict[str, Cell]:
    """Strike once; every row must be there once, and nobody may need help."""
    strike = Strike(scene, fault)
    cells = strike.run()
    if fault.loses:
        scene.lost.append(range(strike.first, scene.feeding.count))
    if os.environ.get("FAULTS_RECORDED"):
        record(fault, cells)
    for name, cell in cells.items():
        print(f"{fault.name}: {name}: {cell}")
    assert [name for name, cell in cells.items() if cell.moves_after is None] == []
    if fault.keeps:
        assert {state for cell in cells.values() for state in cell.states} == {"RUNNING"}
        assert scene.hosts() == strike.hosts
    if fault.told:
        assert strike.silent == set()
    if not fault.loses:
        assert {name: cell.lost for name, cell in cells.items() if cell.lost} == {}
    repeated = {name for name, cell in cells.items() if cell.doubled}
    assert repeated <= {name for name, flow in scene.flows.items() if flow.may_repeat}
    await_true(
        "nobody waits", lambda: not any(told for _, told in scene.states().values()), _PATIENCE
    )
    return cells


@pytest.mark.budget(200)
@pytest.mark.parametrize("fault", [one for one in _EVERY if one.brief], ids=str)
def test_rows_move_again_soon_after_a_fault(scene: Scene, fault: Fault) -> None:
    endure(scene, fault)


@pytest.mark.soak
@pytest.mark.parametrize("fault", _EVERY, ids=str)
def test_rows_move_again_after_every_fault(scene: Scene, fault: Fault) -> None:
    endure(scene, fault)


@pytest.mark.budget(60)
@pytest.mark.parametrize("faults", ["brief", pytest.param("all", marks=pytest.mark.soak)])
def test_no_row_was_lost_or_doubled(scene: Scene, faults: str) -> None:
    scene.feeding.stop()
    audited = set(range(scene.feeding.count)).difference(*scene.lost)
    read: dict[int, list[int]] = {}

    def given(reading: Reading) -> list[int]:
        if id(reading) not in read:
            read[id(reading)] = reading.anew()
        return read[id(reading)]

    for name, flow in scene.flows.items():
        await_true(f"all of {name}", partial(_has_all, flow, audited), _PATIENCE)
        arrived = flow.arrived.anew()
        assert missing(list(audited), arrived, audited) == 0, name
        assert missing(given(flow.given), arrived, audited) == 0, name
        assert flow.may_repeat or doubled(given(flow.given), arrived, audited) == 0, name
