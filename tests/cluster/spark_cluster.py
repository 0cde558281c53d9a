"""Brokers, a Spark cluster and a driver, each on a machine of its own."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.cluster.audit import ENOUGH, PROGRAM, STEPS
from tests.cluster.brokers import PACKAGES, ROOT, Brokers, OneBroker, environment, headrace
from tests.cluster.machines import HOME, Machine, Network, Running
from tests.faults.harness import await_true

__all__ = ["MARKS", "ROOT", "SparkCluster", "Trial", "spark_cluster"]

#: Of each file of tests; more machines side by side would measure each other.
MARKS = [
    *(pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)),
    pytest.mark.together("machines"),
]
_SPARK = Path(pyspark.__file__).parent
_MASTER_PORT = 7077
_DEPLOY = "org.apache.spark.deploy"
#: What docs/guides/operate/cluster.md has an operator set.
_AS_ADVISED = {
    "SPARK_MASTER_OPTS": "-Dspark.rpc.io.enableTcpKeepAlive=true",
    "SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true",
}
_PATIENCE = 400
#: How often a job works: one without a pause would take the cores of the tests beside it.
PACE = ("--commit-interval", "1s")
#: So many results tell that a job works again.
_SOME = 6


class SparkCluster:
    """Jobs and workers on a network of machines."""

    def __init__(self, network: Network, brokers: Brokers) -> None:
        self.network, self.brokers = network, brokers
        self.namesrv = brokers.start(network)
        self.master = f"spark://{network['master'].address}:{_MASTER_PORT}"

    def headrace(self, *words: object, machine: str = "driver", limit: float = 60) -> str:
        """Run one of Headrace's commands to its end; give what it printed."""
        return self.network[machine].run(*headrace(*words), env=environment(), limit=limit)

    def start(self, *words: object, machine: str = "driver") -> Running:
        """Start one of Headrace's commands."""
        return self.network[machine].start(*headrace(*words), env=environment())

    def has_run_tasks(self, name: str) -> bool:
        """Tell whether a worker has loaded the build that was installed on its machine."""
        loaded = self.network[name].folder / PACKAGES / "headrace" / "spark" / "__pycache__"
        return any(loaded.glob("worker.*.pyc"))

    def worker(self, name: str, *, cores: int = 1, bare: bool = False, **variables: str) -> Running:
        """Boot a machine and start a worker of Spark on it.

        Parameters
        ----------
        name
            The machine.
        cores
            How many tasks its executors run at a time.
        bare
            Whether it has nothing but Java and Spark: no Python, no Headrace.
        variables
            What is in its environment besides.
        """
        hidden = _all_python() if bare else []
        machine = self.network.boot(name, hide=hidden, spark=_SPARK)
        return self.start_worker(machine, cores, **variables)

    def start_worker(self, machine: Machine, cores: int = 1, **variables: str) -> Running:
        """Start a worker of Spark on a machine that is there."""
        return _spark_class(
            machine,
            "worker.Worker",
            "--host",
            machine.address,
            "--cores",
            cores,
            "--memory",
            "1g",
            "--webui-port",
            0,
            "--work-dir",
            HOME / "work",
            self.master,
            **variables,
        )

    def busy_worker(self) -> str:
        """Name a machine on which an executor runs."""
        names = [name for name in self.network if list(self.network[name].folder.glob("work/*/*"))]
        assert names, "there is no executor"
        return names[-1]

    def job(
        self,
        name: str,
        *options: object,
        machine: str = "driver",
        python: str = sys.executable,
        pace: Sequence[object] = PACE,
        **variables: str,
    ) -> Running:
        """Start ``headrace run`` for the audit's job, whose file is on that machine only."""
        file = self.network[machine].folder / f"{name}.py"
        file.write_text(PROGRAM.replace("JOB", name))
        options = (*self.brokers.options, *pace, *options)
        where = ("--namesrv", self.namesrv, "--master", self.master)
        words = (python, "-m", "headrace", "run", file.name, *where, *options)
        # A packed Python has its own Headrace, and no Spark.
        env = environment() if python == sys.executable else {"SPARK_HOME": str(_SPARK)}
        return self.network[machine].start(*words, env={**env, **variables})

    def trial(self, name: str) -> Trial:
        """Start to feed a job, and to hold its results against what it was fed.

        Its topics are there, with something to read.
        """
        machine = self.network[self.brokers.watched_from]
        words = (sys.executable, "-m", "tests.cluster.audit", self.namesrv, name)
        trial = Trial(name, machine.folder, machine.start(*words, env=environment()))
        await_true("an audit that feeds", trial.feeds, patience=_PATIENCE)
        return trial


class Trial:
    """A job's input and output, while its machines are struck."""

    def __init__(self, name: str, folder: Path, audit: Running) -> None:
        self._name, self._folder, self._audit = name, folder, audit

    def feeds(self) -> bool:
        """Tell whether there is something to read."""
        return (self._folder / f"{self._name}{STEPS}").exists()

    def times(self) -> list[float]:
        """Return when there were new results, s since 1970."""
        steps = (self._folder / f"{self._name}{STEPS}").read_text()
        # The last line may be half written.
        return [float(line) for line in steps.splitlines()[:-1]]

    def await_results(self, job: Running, after: float = 0.0, count: int = _SOME) -> None:
        """Wait for so many results that came after a time."""

        def come() -> bool:
            assert job.is_alive, f"the job has ended:\n{job.output()}"
            assert self._audit.is_alive, self._audit.output()
            return sum(when > after for when in self.times()) >= count

        await_true(f"results of {self._name}", come, patience=_PATIENCE)

    def longest_gap(self, since: float) -> float:
        """Return the most seconds without a result, from a time until now."""
        times = [since, *(when for when in self.times() if when > since), time.time()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def end_feeding(self) -> None:
        """Have the job told no more: what came out is seen by :meth:`finish`."""
        (self._folder / f"{self._name}{ENOUGH}").touch()

    def finish(self) -> None:
        """End the feeding, and see that what came out is exact."""
        self.end_feeding()
        code = self._audit.end(_PATIENCE)
        assert (code, self._audit.output()[:5]) == (0, "exact"), self._audit.output()


@contextmanager
def spark_cluster(
    folder: Path, workers: Sequence[str], brokers: Brokers | None = None
) -> Iterator[SparkCluster]:
    """Boot brokers, one unless others are given, a master and two drivers' machines.

    Workers are only given their names yet.
    """
    brokers = brokers or OneBroker()
    booted = [*brokers.machines, "master", "driver", "driver-2"]
    with Network(folder, [*booted, *workers]) as network:
        for name in booted:
            network.boot(name)
        master = network["master"]
        place = ("--host", master.address, "--port", _MASTER_PORT)
        leading = _spark_class(master, "master.Master", *place)
        cluster = SparkCluster(network, brokers)
        master.await_port(_MASTER_PORT, leading)
        yield cluster


def _all_python() -> list[Path]:
    """Find where this machine has Python, Headrace and what it needs."""
    places = {place.resolve() for place in (ROOT, Path(sys.base_prefix), Path(sys.prefix))}
    return [place for place in places if not places.intersection(place.parents)]


def _spark_class(machine: Machine, name: str, *words: object, **variables: str) -> Running:
    spark = HOME / "spark" if (machine.folder / "spark").exists() else _SPARK
    own = {"SPARK_LOCAL_IP": machine.address, "SPARK_HOME": str(spark)}
    env = {**own, **_AS_ADVISED, **environment(), **variables}
    return machine.start(spark / "bin" / "spark-class", f"{_DEPLOY}.{name}", *words, env=env)
