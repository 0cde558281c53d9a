"""Two brokers with a replica each, of which machines are cut off and end: exact, and soon again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cluster.brokers import OwnPairs, Pairs, RocketPairs
from tests.cluster.machines import Running, why_not
from tests.cluster.spark_cluster import MARKS, SparkCluster, Trial, spark_cluster
from tests.clusters import require_rocketmq
from tests.faults.harness import at_most, seeded

MINUTES = float(os.environ.get("MINUTES", "10"))
#: How long machines are cut off, s.
CUT = 60.0 if os.environ.get("MINUTES") else 15.0
#: What a strike may cost beyond that, or beyond a lease, s.
LIMIT = 30.0
_WORKERS = ("worker-1", "worker-2", "worker-3")
#: Machines that are struck at once; the job's own topics lie on the first broker.
CUTS = ["broker-b replica-a driver"]
ENDS = ["driver replica-b worker", "broker-a"]
if os.environ.get("MINUTES"):
    CUTS = ["broker-a", "broker-b", "replica-a", "replica-b", "worker", "driver"]
    ENDS = ["replica-a", "replica-b", "worker", "driver", "broker-b", "broker-a"]

pytestmark = MARKS


@dataclass
class Scene:
    """A job on two pairs of brokers, and what it is held against."""

    machines: SparkCluster
    brokers: Pairs
    trial: Trial
    job: Running
    driver: str = "driver"
    #: Machines that have ended for good.
    ended: set[str] = field(default_factory=set)

    def start(self) -> None:
        """Start the job's driver."""
        self.job = self.machines.job("several", "--partitions", 2, machine=self.driver)

    def named(self, strike: str) -> list[str]:
        """Name the machines of a strike."""
        busy = {"worker": self.machines.busy_worker, "driver": lambda: self.driver}
        return [busy.get(word, lambda word=word: word)() for word in strike.split()]


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("rocketmq", marks=pytest.mark.rocketmq)]
)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    if reason := why_not():
        pytest.skip(reason)
    if request.param == "rocketmq":
        require_rocketmq()
    brokers = OwnPairs() if request.param == "embedded" else RocketPairs()
    with spark_cluster(tmp_path_factory.mktemp("pairs"), _WORKERS, brokers) as machines:
        for name in _WORKERS:
            machines.worker(name)
        trial = machines.trial("several")
        job = machines.job("several", "--partitions", 2)
        scene = Scene(machines, brokers, trial, job)
        trial.await_results(job)
        yield scene
        scene.job.interrupt()


@pytest.mark.budget(90)
@pytest.mark.parametrize("strike", CUTS)
def test_a_job_goes_on_soon_after_a_cut(scene: Scene, strike: str) -> None:
    names = scene.named(strike)
    began = time.time()
    for name in names:
        scene.machines.network[name].cut()
    time.sleep(CUT)
    for name in names:
        scene.machines.network[name].mend()
    scene.trial.await_results(scene.job, after=began + CUT)
    gap = scene.trial.longest_gap(began)
    print(f"{strike}: {gap:.0f} s of which {CUT:.0f} cut off, load {os.getloadavg()[0]:.0f}")
    assert gap < CUT + at_most(LIMIT)


@pytest.mark.budget(150)
@pytest.mark.parametrize("strike", ENDS)
def test_a_job_goes_on_soon_after_an_end(scene: Scene, strike: str) -> None:
    names, lease = scene.named(strike), 0.0
    began = time.time()
    for name in names:
        scene.machines.network[name].stop()
    if scene.driver in names:
        scene.driver, lease = "driver-2", scene.brokers.lease
        scene.start()
    for name in names:
        if name.startswith("broker"):
            scene.brokers.go_on_without(name)
            scene.ended.add(name)
    scene.trial.await_results(scene.job, after=time.time())
    gap = scene.trial.longest_gap(began)
    print(f"{strike}: {gap:.0f} s, load {os.getloadavg()[0]:.0f}")
    assert gap < lease + at_most(LIMIT)
    for name in names:
        if name.startswith("replica"):
            scene.brokers.bring_back(name)
        elif name.startswith("worker"):
            scene.machines.worker(name)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_job_endures_cuts_at_random(scene: Scene) -> None:
    chance, until = seeded(), time.time() + 60 * MINUTES
    brokers = [name for name in scene.brokers.pairs if name not in scene.ended]
    while time.time() < until:
        (name,) = scene.named(chance.choice([*brokers, "worker", "driver"]))
        cut = chance.uniform(1, 60)
        began = time.time()
        scene.machines.network[name].cut()
        time.sleep(cut)
        scene.machines.network[name].mend()
        scene.trial.await_results(scene.job, after=began + cut)
        gap = scene.trial.longest_gap(began)
        print(f"{name}: {gap:.0f} s of which {cut:.0f} cut off")
        assert gap < cut + at_most(LIMIT)


def test_order_windows_joins_and_dead_letters_are_those_of_the_input(scene: Scene) -> None:
    scene.trial.finish()
