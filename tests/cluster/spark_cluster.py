"""A broker, a Spark cluster and a driver, each on a machine of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.cluster.machines import HOME, Machine, Network, Running

__all__ = ["ROOT", "SparkCluster", "spark_cluster"]

ROOT = Path(__file__).parents[2]
_SPARK = Path(pyspark.__file__).parent
_PORT, _MASTER_PORT = 9876, 7077
_DEPLOY = "org.apache.spark.deploy"
#: What `headrace consume` shows of a count.
_COUNT = re.compile(r"(\w+)\t(\d+)$")


class SparkCluster:
    """Jobs and workers on a network of machines."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.namesrv = f"{network['broker'].address}:{_PORT}"
        self.master = f"spark://{network['master'].address}:{_MASTER_PORT}"
        self._topics = 0

    def headrace(self, *words: object, machine: str = "driver", limit: float = 60) -> str:
        """Run one of Headrace's commands to its end; give what it printed."""
        return self.network[machine].run(*_headrace(*words), env=_env(), limit=limit)

    def start(self, *words: object, machine: str = "driver") -> Running:
        """Start one of Headrace's commands."""
        return self.network[machine].start(*_headrace(*words), env=_env())

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

    def job(self, program: Path | str, *options: object, machine: str = "driver") -> Running:
        """Start ``headrace run`` for a program, which is brought to the driver's machine."""
        driver = self.network[machine]
        file = driver.folder / "job.py"
        text = program.read_text() if isinstance(program, Path) else program
        file.write_text(text)
        return self.start(
            "run",
            "job.py",
            "--namesrv",
            self.namesrv,
            "--master",
            self.master,
            "--spark-config",
            f"spark.driver.host={driver.address}",
            *options,
            machine=machine,
        )

    def produce(self, topic: str, lines: Sequence[str]) -> None:
        """Send lines to a topic."""
        broker = self.network["broker"]
        (broker.folder / "lines").write_text("\n".join([*lines, ""]))
        words = ("produce", topic, "--namesrv", self.namesrv)
        command = " ".join(map(str, _headrace(*words)))
        broker.run("sh", "-c", f"{command} < lines", env=_env())

    def counts(self, topic: str) -> dict[str, int]:
        """Return the newest value of each key in a topic of counts."""
        words = ("consume", topic, "--namesrv", self.namesrv, "--from-beginning", "--until-end")
        lines = self.headrace(*words, machine="broker").splitlines()
        pairs = [found.groups() for line in lines if (found := _COUNT.search(line))]
        return {key: int(value) for key, value in pairs}


@contextmanager
def spark_cluster(folder: Path, workers: Sequence[str]) -> Iterator[SparkCluster]:
    """Boot a broker, a master and a driver; workers are only given their names yet."""
    with Network(folder, ["broker", "master", "driver", "driver-2", *workers]) as network:
        for name in ("broker", "master", "driver"):
            network.boot(name)
        broker, master = network["broker"], network["master"]
        cluster = SparkCluster(network)
        words = (
            "broker",
            "--host",
            broker.address,
            "--port",
            _PORT,
            "--data",
            "broker-data",
            "--allow-anyone",
        )
        serving = cluster.start(*words, machine="broker")
        place = ("--host", master.address, "--port", _MASTER_PORT, "--webui-port", 0)
        leading = _spark_class(master, "master.Master", *place)
        broker.await_port(_PORT, serving)
        master.await_port(_MASTER_PORT, leading)
        yield cluster


def _all_python() -> list[Path]:
    """Find where this machine has Python, Headrace and what it needs."""
    places = {place.resolve() for place in (ROOT, Path(sys.base_prefix), Path(sys.prefix))}
    return [place for place in places if not places.intersection(place.parents)]


def _headrace(*words: object) -> list[object]:
    return [sys.executable, "-m", "headrace", *words]


def _env() -> dict[str, str]:
    # A clone's code goes before an installed one's.
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def _spark_class(machine: Machine, name: str, *words: object) -> Running:
    spark = HOME / "spark" if (machine.folder / "spark").exists() else _SPARK
    env = {"SPARK_LOCAL_IP": machine.address, "SPARK_HOME": str(spark), **_env()}
    return machine.start(spark / "bin" / "spark-class", f"{_DEPLOY}.{name}", *words, env=env)
