"""Machines that run builds of other versions: upgraded one by one, and refused where they don't fit.

The builds are wheels of this clone with other numbers.  The oldest knows a setting less, and what
it tells tasks of their splits stands in another order.
"""

from __future__ import annotations

import re
import shutil
import signal
import time
import tomllib
from pathlib import Path

import pytest

from headrace.packing.distributions import build_wheel
from tests.cluster.brokers import OneBroker, install, unpack
from tests.cluster.machines import Running
from tests.cluster.spark_cluster import MARKS, ROOT, SparkCluster
from tests.faults.harness import at_most, await_true

pytestmark = MARKS

PROJECT = (ROOT / "pyproject.toml").read_text()
OLDER: str = tomllib.loads(PROJECT)["project"]["version"]
_MAJOR, _MINOR, _PATCH = map(int, OLDER.split("."))
NEWER, FAR = f"{_MAJOR}.{_MINOR}.{_PATCH + 1}", f"{_MAJOR}.{_MINOR + 1}.0"
#: How the older build differs: it has no setting `commit_interval`, and the fields of a split turned
#: round.
DIFFERENCES = [
    ("settings.py", r"    commit_interval: timedelta = setting\(\n(?:.*\n)*?    \)\n", ""),
    ("spark/driver.py", r"settings\.commit_interval", "type(settings.batch_timeout)(0)"),
    ("runtime/planning.py", r"(    number: int\n)((?:    #:.*\n)*    of: int\n)", r"\2\1"),
    ("runtime/planning.py", r"Split\(number, count, ", "Split(count, number, "),
]
WORKERS = ("worker-1", "worker-2")


class Fleet:
    """A cluster, and the builds that its machines are given."""

    def __init__(self, machines: SparkCluster, builds: dict[str, Path]) -> None:
        self.machines, self._builds = machines, builds
        self._workers = {name: machines.worker(name) for name in WORKERS}

    def bring_broker(self, version: str) -> None:
        """Start the broker anew, on its data."""
        brokers = self.machines.brokers
        assert isinstance(brokers, OneBroker)
        brokers.upgrade(self._builds[version])

    def bring_worker(self, name: str, version: str) -> None:
        """Start Spark's worker on a machine anew."""
        self._workers[name].send(signal.SIGTERM)
        self._workers[name].end(60)
        install(self._builds[version], self.machines.network[name])
        self._workers[name] = self.machines.start_worker(self.machines.network[name])

    def job(self, version: str, name: str, *options: object) -> Running:
        """Start a job's driver."""
        install(self._builds[version], self.machines.network["driver"])
        return self.machines.job(name, "--partitions", 2, *options, pace=())

    def await_tasks(self, name: str) -> None:
        """Wait until a worker has loaded the build of its machine."""
        await_true(f"tasks on {name}", lambda: self.machines.has_run_tasks(name), at_most(120))


def build(folder: Path, version: str) -> Path:
    """Build this clone under another version; give the folder of what is to be installed."""
    sources = folder / version
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", sources / "src", ignore=bytecode)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    project = PROJECT.replace(f'version = "{OLDER}"', f'version = "{version}"', 1)
    (sources / "pyproject.toml").write_text(project)
    for name, pattern, instead in DIFFERENCES if version == OLDER else ():
        file = sources / "src" / "headrace" / name
        text, times = re.subn(pattern, instead, file.read_text())
        assert times == 1, f"{name} does not have {pattern} once"
        file.write_text(text)
    wheels = sources / "wheels"
    wheels.mkdir()
    return unpack(build_wheel(sources, wheels), sources / "build")


@pytest.fixture(scope="module")
def fleet(machines: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("builds")
    return Fleet(machines, {version: build(folder, version) for version in (OLDER, NEWER, FAR)})


def stop(job: Running) -> None:
    assert job.interrupt() == 0, job.output()


def error_of(job: Running) -> str:
    """Wait for a job to end, which neither tries again nor goes back; give what it says."""
    assert job.end(at_most(120)) == 1, job.output()
    assert "goes back" not in job.output()
    (line,) = [line for line in job.output().splitlines() if line.startswith("error:")]
    return line


@pytest.mark.budget(180)
def test_machines_are_upgraded_one_by_one(fleet: Fleet) -> None:
    """The broker first, workers next and the driver last; the job goes on under all but the last."""
    fleet.bring_broker(OLDER)
    for name in WORKERS:
        fleet.bring_worker(name, OLDER)
    trial = fleet.machines.trial("rolled")
    job = fleet.job(OLDER, "rolled")
    trial.await_results(job)
    fleet.bring_broker(NEWER)
    trial.await_results(job, after=time.time())
    for name in WORKERS:
        fleet.await_tasks(name)
        fleet.bring_worker(name, NEWER)
        fleet.await_tasks(name)
        trial.await_results(job, after=time.time())
    stop(job)
    job = fleet.job(NEWER, "rolled", "--commit-interval", "200ms")
    trial.await_results(job, after=time.time())
    trial.finish()
    stop(job)


@pytest.mark.budget(120)
def test_an_older_worker_names_the_setting_that_it_does_not_know(fleet: Fleet) -> None:
    """Without that setting a newer driver works with it, and its job with an older driver then."""
    for name in WORKERS:
        fleet.bring_worker(name, OLDER)
    trial = fleet.machines.trial("ahead")
    told = error_of(fleet.job(NEWER, "ahead", "--commit-interval", "200ms"))
    assert re.search(
        rf"machine worker-[12] knows no commit_interval of JobSettings.* \({OLDER}\)", told
    )
    job = fleet.job(NEWER, "ahead")
    trial.await_results(job)
    stop(job)
    job = fleet.job(OLDER, "ahead")
    trial.await_results(job, after=time.time())
    trial.finish()
    stop(job)


@pytest.mark.budget(120)
def test_a_worker_that_does_not_fit_ends_the_job_at_once(fleet: Fleet) -> None:
    for name, version in zip(WORKERS, (NEWER, FAR), strict=True):
        fleet.bring_worker(name, version)
    trial = fleet.machines.trial("refused")
    told = error_of(fleet.job(NEWER, "refused"))
    assert (
        f"machine worker-2 runs headrace {FAR}, and the driver of the job headrace {NEWER}" in told
    )
    fleet.bring_worker("worker-2", NEWER)
    job = fleet.job(NEWER, "refused")
    trial.await_results(job)
    trial.finish()
    stop(job)
