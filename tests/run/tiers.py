"""What tests cost: the tier of each, what it may take, in which order they run, where time went.

A pytest plugin.  Tests are of four tiers, by what they need: nothing, a broker or a process of our
own, Spark, servers of others.  A run says at its start how long it will take, and at its end where
the time went; a test that took longer than its tier allows, or a tier that took longer than it may
in sum, fails the run where ``--hold-budgets`` is given.

Budgets are those of a quiet machine with two cores; of tests that need nothing, seconds of a core.
How much slower the one at hand is, a run finds out by itself: it compares what it sees with what
was recorded in ``durations.json``.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.run.schedule import group_of, place_of, read_groups, write_groups
from tests.run.servers import SERVERS, asks_for_a_server_that_ends_early, starting

Tier = Literal["pure", "broker", "spark", "servers"]

#: Seconds that a test of each tier may take.
BUDGETS: dict[Tier, float] = {"pure": 0.2, "broker": 1.0, "spark": 5.0, "servers": 10.0}

#: Seconds that a test may take which `make test` leaves out.
SLOW_BUDGET = 60.0

#: Seconds that all tests of a tier may take side by side: those of `make test`, and all.
SUMS: dict[Tier, tuple[float, float]] = {
    "pure": (800, 1700),
    "broker": (900, 1500),
    "spark": (600, 4000),
    "servers": (600, 1400),
}

_RECORDED = Path(__file__).with_name("durations.json")
#: Tests below this many seconds are recorded with their file only.
_WORTH = 0.3
#: Chance alone makes some tests take so many times as long as they should, and so much longer.
_TIMES, _MORE = 3.0, 2.0
#: Seconds of pure tests, for three processes together, in which servers start.
_MEANWHILE = 220.0
#: The same of all tests of a tier together.
_IN_SUM = 1.5
#: A group that takes so much of a process's share of a run is a long one.
_MOST = 0.5
#: So few tests tell nothing about the machine.
_ENOUGH = 10
_SLOWEST = 5
#: Lines of an error that are told at once.
_TOLD = 3

#: Fixtures that mean a broker or a process of our own.
_OF_BROKERS = {"broker", "client", "cluster", "embedded", "namesrv", "rig", "wire", "guarded"}
#: Folders whose tests start brokers and processes, fixtures or not.
_PROCESSES = (
    *("tests/broker/", "tests/cli/", "tests/client/", "tests/faults/", "tests/fuzz/"),
    *("tests/connect/chaos/", "tests/connect/connectors/", "tests/connect/coordination/"),
    *("tests/connect/data/", "tests/connect/hosts/", "tests/connect/log/", "tests/connect/rest/"),
    *("tests/connect/worker/", "tests/examples/", "tests/store/test_kills.py"),
    "tests/transactions/",
)

#: Whose tests run on both kinds of cluster in `make test`; those of others do on the embedded one.
_BOTH_KINDS = ("tests/client/", "tests/spark/test_job.py", "tests/spark/rocketmq/")

#: Long ones of those others, by how they begin: on RocketMQ they are soaks.
_SOAKS_ON_ROCKETMQ = (
    "tests/faults/test_state_layouts.py::test_results_are_the_same",
    "tests/spark/test_batches.py::test_what_hangs",
)

#: What tests may take that have a reason to take longer than their tier allows, by how they begin.
_DEARER: dict[str, float] = {
    # Jobs whose processes die, models, thousands of seeds, whole benchmarks.
    "tests/broker/replication/test_kills.py": 5.0,
    "tests/cli/test_run.py": 20.0,
    "tests/cli/test_supervision.py": 3.0,
    "tests/cli/connect/test_worker.py": 15.0,
    "tests/client/test_push_faults.py": 3.0,
    "tests/connect/connectors/test_kill_points.py": 3.0,
    "tests/connect/coordination/": 20.0,
    "tests/connect/data/": 15.0,
    "tests/connect/hosts/": 3.0,
    "tests/connect/rest/test_cases.py": 12.0,
    "tests/connect/rest/": 3.0,
    "tests/examples/": 3.0,
    "tests/faults/": 6.0,
    "tests/faults/test_kills.py": 40.0,
    "tests/faults/test_supervision.py": 40.0,
    "tests/proof/": 8.0,
    "tests/simulation/": 12.0,
    "tests/spark/": 6.0,
    "tests/spark/test_model.py": 15.0,
    # A Spark that was ended starts anew in some of them.
    "tests/spark/test_topologies.py": 12.0,
    "tests/store/replication/test_machine.py": 4.0,
    "tests/test_benchmarks.py": 30.0,
    "tests/transactions/": 5.0,
    # A limit of time is what they look at, on the real clock.
    "tests/broker/test_limits.py": 2.0,
    "tests/cli/test_app.py::test_absent_broker_is_named": 5.0,
    "tests/cli/test_checks.py": 3.0,
    "tests/connect/connectors/rocketmq/test_sink.py::test_patience_ends": 5.0,
    "tests/connect/worker/": 2.0,
    # A RocketMQ deletes what has expired when its own services come round to it.
    "tests/faults/test_retention.py": 20.0,
    # They run a compiler, or a process of their own, which has to start.
    "tests/streams/test_typing.py": 6.0,
    "tests/connect/plugins/test_template.py": 3.0,
    "tests/test_imports.py": 1.0,
    "tests/test_run_cases.py": 2.0,
    # Every byte, every operation, every course of events that chance makes.
    "tests/client/test_table.py": 2.0,
    "tests/columns/": 0.8,
    "tests/connect/converters/": 0.8,
    "tests/connect/log/": 2.0,
    "tests/protocol/": 1.2,
    "tests/runtime/": 1.5,
    "tests/store/": 0.8,
    "tests/streams/test_model.py": 1.2,
}


def tier_of(item: pytest.Item) -> Tier:
    """Return the tier of a test, by its marks, its fixtures and its folder."""
    names = set(getattr(item, "fixturenames", ()))
    call = getattr(item, "callspec", None)
    names |= {value for value in (call.params.values() if call else ()) if isinstance(value, str)}
    if item.get_closest_marker("spark") or "spark" in names:
        return "spark"
    if item.get_closest_marker("rocketmq") or names & set(SERVERS) or "java" in names:
        return "servers"
    if names & _OF_BROKERS or place_of(item.nodeid).startswith(_PROCESSES):
        return "broker"
    return "pure"


def budget_of(item: pytest.Item, tier: Tier) -> float:
    """Return the seconds that a test may take on a quiet machine."""
    marker = item.get_closest_marker("budget")
    if marker:
        return float(marker.args[0])
    if item.get_closest_marker("soak"):
        return math.inf
    if item.get_closest_marker("slow"):
        return SLOW_BUDGET
    starts = [start for start in _DEARER if item.nodeid.startswith(start)]
    return max(BUDGETS[tier], _DEARER[max(starts, key=len)] if starts else 0.0)


def _is_repeated(item: pytest.Item) -> bool:
    """Whether a test holds on RocketMQ what it holds on the embedded broker too."""
    call = getattr(item, "callspec", None)
    both = call is not None and call.params.get("cluster") == "rocketmq"
    return both and not place_of(item.nodeid).startswith(_BOTH_KINDS)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What tests took on a quiet machine."""

    #: Of each group: what its short tests took together, and how many they are.
    groups: dict[str, tuple[float, int]]
    #: What each of the long tests took.
    tests: dict[str, float]

    @classmethod
    def read(cls) -> Recorded:
        """Read what the repository has."""
        held = json.loads(_RECORDED.read_text()) if _RECORDED.exists() else {}
        groups = {name: (took, count) for name, (took, count) in held.get("groups", {}).items()}
        return cls(groups, held.get("tests", {}))

    def of(self, name: str, group: str) -> float:
        """Seconds that a test will take."""
        took, count = self.groups.get(group, (0.0, 0))
        return self.tests.get(name, took / count if count else 0.0)


@dataclass(slots=True)
class _Ran:
    tier: Tier
    budget: float
    #: With its set-up, which may be that of other tests too.
    whole: float = 0.0
    seconds: float = 0.0
    #: Whether it began while servers started, which leave little of the machine: no budget holds.
    early: bool = False


@dataclass(eq=False, slots=True)
class Ledger:
    """What the tests of a run took; a plugin of the process that leads it."""

    config: pytest.Config
    recorded: Recorded
    began: float = field(default_factory=time.monotonic)
    ran: dict[str, _Ran] = field(default_factory=dict)
    told: bool = False
    #: When the servers of the run stood.
    settled: float | None = None
    groups: dict[str, str] = field(default_factory=dict)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Say how long the run will take."""
        if not self.told:
            self.told = True
            self.groups = read_groups()
            self._say(self._forecast(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a part of a test took; say at once what failed, as a run may be cut off."""
        if report.failed and self.config.option.numprocesses:
            told = [line for line in report.longreprtext.splitlines() if line.startswith("E  ")]
            self._say("", f"FAILED {report.nodeid} ({report.when})", *told[:_TOLD])
        if self.settled is None and not starting():
            self.settled = time.time()
        given: dict[str, Any] = dict(report.user_properties)
        if "tier" in given:
            name = report.nodeid
            one = self.ran.setdefault(name, _Ran(given["tier"], given["budget"]))
            one.whole += report.duration
            if report.when == "call":
                one.early = self.settled is None or report.start < self.settled
                one.seconds += given.get("cpu", report.duration)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that cost more than it may; record one where that was asked for."""
        if self.config.option.record_durations:
            self._record()
        if self.config.option.hold_budgets and self._over() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self) -> None:
        """Say where the time went."""
        took = f"{time.monotonic() - self.began:.0f} s"
        self._say("", f"{took}; tests take {self._slowness():.1f} times as long as recorded.")
        for tier, budget in BUDGETS.items():
            names = [name for name, one in self.ran.items() if one.tier == tier]
            if not names:
                continue
            self._say(f"{tier}: {len(names):,} tests, {self._sum(tier):.0f} s; {budget:g} s each")
            slowest = sorted(names, key=lambda name: -self.ran[name].seconds)[:_SLOWEST]
            self._say(*(f"  {self.ran[name].seconds:6.1f} s  {name}" for name in slowest))
        if over := self._over():
            self._say(f"OVER BUDGET ({len(over)}):", *(f"  {text}" for text in over))
            self._say(
                "  → make them quicker, or see docs/contribute/testing.md on what may cost more"
            )

    def _say(self, *lines: str) -> None:
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        for line in lines:
            reporter.write_line(line)

    def _forecast(self, ids: list[str]) -> str:
        took: dict[str, float] = defaultdict(float)
        for name in ids:
            took[self._group(name)] += self.recorded.of(name, self._group(name))
        workers = self.config.option.numprocesses or 1
        minutes = max([sum(took.values()) / workers, *took.values()]) / 60
        return f"{len(ids):,} tests, some {minutes:.0f} minutes on two quiet cores"

    def _group(self, name: str) -> str:
        return self.groups.get(name) or place_of(name)

    def _slowness(self) -> float:
        """How many times as long as recorded tests take here; at least 1."""
        known = self.recorded.tests
        found = [one.whole / known[name] for name, one in self.ran.items() if name in known]
        return max(1.0, statistics.median(found)) if len(found) >= _ENOUGH else 1.0

    def _over(self) -> list[str]:
        """Say which tests took longer than they may, and which tiers."""
        slowness = self._slowness()
        every = 0 if "not slow" in self.config.option.markexpr else 1
        tests = [
            f"{name} took {one.seconds:.1f} s of {one.budget:g} s"
            for name, one in self.ran.items()
            if one.seconds > one.budget * slowness * _TIMES + _MORE and not one.early
        ]
        tiers = [
            f"all tests of the tier {tier!r} took {self._sum(tier):.0f} s of {most[every]:g} s"
            for tier, most in SUMS.items()
            if self._sum(tier) > most[every] * slowness * _IN_SUM
        ]
        return tests + tiers

    def _sum(self, tier: Tier) -> float:
        return sum(one.whole for one in self.ran.values() if one.tier == tier)

    def _record(self) -> None:
        long = {name: round(one.whole, 1) for name, one in self.ran.items()}
        long = {name: took for name, took in long.items() if took >= _WORTH}
        shares: dict[str, list[float]] = defaultdict(list)
        for name, one in self.ran.items():
            if name not in long:
                shares[self._group(name)].append(one.whole)
        short = {name: (round(sum(took), 2), len(took)) for name, took in shares.items()}
        # What did not run keeps what was recorded before, while its file is there.
        before = {name: took for name, took in self.recorded.tests.items() if name not in self.ran}
        kept = {name: took for name, took in before.items() if Path(place_of(name)).exists()}
        groups = {name: took for name, took in self.recorded.groups.items() if Path(name).exists()}
        held = {"groups": groups | short, "tests": kept | long}
        _RECORDED.write_text(json.dumps(held, indent=0, sort_keys=True) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure pure tests by what they compute: whatever runs beside them does not count."""
    began = time.thread_time()
    yield
    if ("tier", "pure") in item.user_properties:
        item.user_properties.append(("cpu", time.thread_time() - began))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin nothing more where the time of a run is over."""
    if time.time() > item.config.option.until:
        pytest.skip("the time of this run is over")


_recorded = pytest.StashKey[Recorded]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options on costs."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write what all tests take into tests/run/durations.json; on a quiet machine",
    )
    parser.addoption(
        "--hold-budgets", action="store_true", help="fail where tests take longer than they may"
    )
    parser.addoption(
        "--until",
        type=float,
        default=math.inf,
        help="skip what has not begun by then, s since 1970; the run says how much that was",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read what was recorded; keep a ledger where this process leads the run."""
    recorded = config.stash[_recorded] = Recorded.read()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(config, recorded), "ledger")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Tell tiers; bring long groups to the front, since whatever runs last runs alone."""
    groups: dict[str, str] = {}
    for item in items:
        tier, group = tier_of(item), group_of(item)
        item.add_marker(getattr(pytest.mark, tier))
        groups[item.nodeid] = group
        if _is_repeated(item):
            item.add_marker(pytest.mark.slow)
            if item.nodeid.startswith(_SOAKS_ON_ROCKETMQ):
                item.add_marker(pytest.mark.soak)
        item.user_properties += [("tier", tier), ("budget", budget_of(item, tier))]
    yield
    if not hasattr(config, "workerinput"):
        return
    write_groups(groups)
    # Marks have chosen those that run.
    recorded = config.stash[_recorded]
    needy: set[str] = set()
    brief: set[str] = set()
    took: dict[str, float] = defaultdict(float)
    for item in items:
        group = groups[item.nodeid]
        took[group] += recorded.of(item.nodeid, group)
        if ("tier", "pure") not in item.user_properties:
            needy.add(group)
        if asks_for_a_server_that_ends_early(item):
            brief.add(group)
    # What lets a server end goes before what is longer.
    order = sorted(took, key=lambda name: (name not in brief, -took[name]))
    # What takes a process most of the run goes before all: whatever waits for it would run alone.
    share = sum(took.values()) / config.workerinput["workercount"]
    long = [name for name in order if took[name] > share * _MOST]
    # One process begins with Spark, the others with what needs nothing, while servers start.
    first, left = [], _MEANWHILE
    for name in order:
        if name not in needy and left > 0:
            first.append(name)
            # A long one keeps one process of three, and leaves the others to the rest.
            left -= min(took[name], _MEANWHILE / 3)
    names = dict.fromkeys(["spark", *long, *first, *order])
    place = {name: number for number, name in enumerate(names)}
    items.sort(key=lambda item: place[groups[item.nodeid]])
