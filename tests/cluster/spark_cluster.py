"""A broker, a Spark cluster and a driver, each on a machine of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.cluster.audit import ENOUGH, SINK, SOURCE, STEPS
from tests.cluster.machines import HOME, Machine, Network, Running
from tests.faults.harness import await_true

__all__ = ["ROOT", "SparkCluster", "Trial", "spark_cluster"]

ROOT = Path(__file__).parents[2]
_SPARK = Path(pyspark.__file__).parent
_PORT, _MASTER_PORT = 9876, 7077
_DEPLOY = "org.apache.spark.deploy"
_PATIENCE = 240
#: Where a machine may have a Headrace of its own, in its folder.
_PACKAGES = "packages"
#: So many results tell that a job works again.
_SOME = 5
_PROGRAM = """\
from headrace import StreamBuilder, serdes

builder = StreamBuilder("{name}")
(
    builder.source("{source}", serdes.string)
    .flat_map_values(str.split)
    .key_by(lambda word: word)
    .count()
    .to_stream()
    .sink("{sink}", serdes.json)
)
topology = builder.build()
"""


class SparkCluster:
    """Jobs and workers on a network of machines."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._broker: Running | None = None
        self.namesrv = f"{network['broker'].address}:{_PORT}"
        self.master = f"spark://{network['master'].address}:{_MASTER_PORT}"

    def headrace(self, *words: object, machine: str = "driver", limit: float = 60) -> str:
        """Run one of Headrace's commands to its end; give what it printed."""
        return self.network[machine].run(*_headrace(*words), env=_env(), limit=limit)

    def start(self, *words: object, machine: str = "driver") -> Running:
        """Start one of Headrace's commands."""
        return self.network[machine].start(*_headrace(*words), env=_env())

    def install(self, wheel: Path, name: str) -> None:
        """Give a machine a build of Headrace in place of the one that it has; what runs goes on."""
        place = self.network[name].folder / _PACKAGES
        shutil.rmtree(place, ignore_errors=True)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(place)

    def has_run_tasks(self, name: str) -> bool:
        """Tell whether a worker has loaded the build that was installed on its machine."""
        loaded = self.network[name].folder / _PACKAGES / "headrace" / "spark" / "__pycache__"
        return any(loaded.glob("worker.*.pyc"))

    def start_broker(self, wheel: Path | None = None) -> None:
        """Start the broker, or start it anew on its data by another build."""
        machine = self.network["broker"]
        if self._broker is not None:
            self._broker.send(signal.SIGTERM)
            self._broker.end(60)
        if wheel is not None:
            self.install(wheel, "broker")
        words = ("--host", machine.address, "--port", _PORT, "--data", "broker-data")
        self._broker = self.start("broker", *words, "--allow-anyone", machine="broker")
        machine.await_port(_PORT, self._broker)

    def worker(self, name: str, *, cores: int = 1, bare: bool = False) -> Running:
        """Boot a machine and start a worker of Spark on it.

        Parameters
        ----------
        name
            The machine.
        cores
            How many tasks its executors run at a time.
        bare
            Whether it has nothing but Java and Spark: no Python, no Headrace.
        """
        hidden = _all_python() if bare else []
        machine = self.network.boot(name, hide=hidden, spark=_SPARK)
        return self.start_worker(machine, cores)

    def start_worker(self, machine: Machine, cores: int = 1) -> Running:
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
        **variables: str,
    ) -> Running:
        """Start ``headrace run`` for a job that counts words, whose file is on that machine only."""
        file = self.network[machine].folder / f"{name}.py"
        file.write_text(_PROGRAM.format(name=name, source=name + SOURCE, sink=name + SINK))
        where = ("--namesrv", self.namesrv, "--master", self.master)
        words = (python, "-m", "headrace", "run", file.name, *where, *options)
        # A packed Python has its own Headrace, and no Spark.
        env = _env() if python == sys.executable else {"SPARK_HOME": str(_SPARK)}
        return self.network[machine].start(*words, env={**env, **variables})

    def trial(self, name: str) -> Trial:
        """Start to feed a job, and to hold its results against what it was fed."""
        broker = self.network["broker"]
        words = (sys.executable, "-m", "tests.cluster.audit", self.namesrv, name)
        return Trial(name, broker.folder, broker.start(*words, env=_env()))


class Trial:
    """A job's input and output, while its machines are struck."""

    def __init__(self, name: str, folder: Path, audit: Running) -> None:
        self._name, self._folder, self._audit = name, folder, audit

    def await_topics(self) -> None:
        """Wait until there is something to read."""
        steps = self._folder / f"{self._name}{STEPS}"
        await_true("an audit that feeds", steps.exists, patience=_PATIENCE)
        time.sleep(1)

    def times(self) -> list[float]:
        """Return when there were new results, s since 1970."""
        steps = (self._folder / f"{self._name}{STEPS}").read_text()
        # The last line may be half written.
        return [float(line) for line in steps.splitlines()[:-1]]

    def await_results(self, job: Running, after: float = 0.0) -> None:
        """Wait for results that came after a time, and some more."""

        def come() -> bool:
            assert job.is_alive, f"the job has ended:\n{job.output()}"
            assert self._audit.is_alive, self._audit.output()
            return sum(when > after for when in self.times()) > _SOME

        await_true(f"results of {self._name}", come, patience=_PATIENCE)

    def longest_gap(self, since: float) -> float:
        """Return the most seconds without a result, from a time until now."""
        times = [since, *(when for when in self.times() if when > since), time.time()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def finish(self) -> None:
        """End the feeding, and see that all of it is counted once."""
        (self._folder / f"{self._name}{ENOUGH}").touch()
        code = self._audit.end(_PATIENCE)
        assert (code, self._audit.output()[:5]) == (0, "exact"), self._audit.output()


@contextmanager
def spark_cluster(folder: Path, workers: Sequence[str]) -> Iterator[SparkCluster]:
    """Boot a broker, a master and a driver; workers are only given their names yet."""
    with Network(folder, ["broker", "master", "driver", "driver-2", *workers]) as network:
        for name in ("broker", "master", "driver", "driver-2"):
            network.boot(name)
        cluster, master = SparkCluster(network), network["master"]
        place = ("--host", master.address, "--port", _MASTER_PORT)
        leading = _spark_class(master, "master.Master", *place)
        cluster.start_broker()
        master.await_port(_MASTER_PORT, leading)
        yield cluster


def _all_python() -> list[Path]:
    """Find where this machine has Python, Headrace and what it needs."""
    places = {place.resolve() for place in (ROOT, Path(sys.base_prefix), Path(sys.prefix))}
    return [place for place in places if not places.intersection(place.parents)]


def _headrace(*words: object) -> list[object]:
    return [sys.executable, "-m", "headrace", *words]


def _env() -> dict[str, str]:
    # A machine's own build goes before the clone's code, and that before an installed one's.
    places = (HOME / _PACKAGES, ROOT / "src", ROOT)
    return {"PYTHONPATH": os.pathsep.join(map(str, places))}


def _spark_class(machine: Machine, name: str, *words: object) -> Running:
    spark = HOME / "spark" if (machine.folder / "spark").exists() else _SPARK
    env = {"SPARK_LOCAL_IP": machine.address, "SPARK_HOME": str(spark), **_env()}
    return machine.start(spark / "bin" / "spark-class", f"{_DEPLOY}.{name}", *words, env=env)
