"""What more cores would do, on paper: ``python -m benchmarks.scale [--measure] [--price PRICE]``.

Every constant is measured, and says where; everything else on the page follows from them and from
the assumptions at their top.  Nothing here was ever run on more than two cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.events import random_keys, send_events
from benchmarks.large_units import append_times
from benchmarks.lines import send_lines
from benchmarks.partitions import job_topics, send_one
from benchmarks.sizes import FULL, QUEUES
from benchmarks.streams import PIPELINES, topology
from benchmarks.word_count import word_count
from headrace import Topology
from headrace.broker import EmbeddedBroker
from headrace.client import Admin, Client
from headrace.protocol.transactions import CommitRecord, StateSummary
from tests.faults.local_driver import LocalDriver

__all__ = ["CORES", "JOBS", "Job", "Model", "pages", "record_bytes"]

CORES = (2, 10, 100, 1000)
#: Partitions for a core: enough that an uneven share of keys leaves none of them idle for long.
PARTITIONS_PER_CORE = 2
#: The longest batch that the page looks at, seconds: results are as old as that.
LONGEST_BATCH = 10.0
#: Dollars of a core-hour, with its memory: about what clouds ask for by the hour, no list price.
PRICE = 0.05
#: Bytes/s between two machines: 10 Gbit/s.
NETWORK = 1.25e9
#: Bytes of a record, or of a key's state, on its way from the broker to a worker.
INPUT_BYTES = 120
#: Keys of the state that is read anew.
KEYS = 100_000_000
#: What a broker takes as one message.
MOST_BYTES = 4 * 1024 * 1024
_MOST_PARTITIONS = 65_536
#: Records of the batch whose bytes are counted: below what a unit beside the log begins at.
_WRITTEN = 50_000


@dataclass(frozen=True, slots=True)
class Constant:
    """A measured number."""

    value: float
    unit: str
    where: str


CONSTANTS = {
    "batch": Constant(0.118, "s", "`batch_of_one_8`, less its eight partitions; load 4.3"),
    "partition": Constant(
        0.0127,
        "core-s",
        "`batch_of_one_1024` less `batch_of_one_8`, on two cores, by partition; load 4.3",
    ),
    "driver": Constant(
        3.1e-5, "core-s", "`--measure`: plan and commit, 256 partitions less 8, each; load 10.9"
    ),
    "control": Constant(
        578, "bytes", "`batch_of_one_1024_bytes` less `batch_of_one_8_bytes`, by partition"
    ),
    "append": Constant(
        82, "MB/s", "`--measure`: a unit of 256 MB put on disk beside appends; load 11.6"
    ),
    "restore": Constant(405_000, "keys/core-s", "`restore`, a partition for a core; load 1.4"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """What a job costs by record, and what was measured of it as a whole."""

    name: str
    #: CPU by record, seconds: of workers, and of the broker; "Operators of streams", load 5 to 7.
    worker: float
    broker: float
    #: Bytes of the broker's log by record; `--measure`, batches of 50,000.
    written: float
    #: Records/s of the whole job on two cores, in batches of 100,000; table of results.
    measured: float


JOBS = (
    Job("map_lambda", 1.6e-6, 0.8e-6, 117, 348_812),
    Job("window_tumbling", 3.6e-6, 0.8e-6, 42.5, 250_980),
    Job("aggregate_python", 7.9e-6, 1.5e-6, 216, 111_631),
    Job("word_count_1k", 3.1e-6, 0.1e-6, 5.61, 1_099_052 / 5),
)
_MEASURED_BATCH = 100_000
_MEASURED_PARTITIONS = 2

#: What the page has, by the names of what is measured anew.
PAGE = {name: constant.value for name, constant in CONSTANTS.items()} | {
    f"written by {job.name}": job.written for job in JOBS
}


@dataclass(frozen=True, slots=True)
class Model:
    """A job on cores of its own for its workers, and one more for the broker that it lies on.

    Parameters
    ----------
    job
        The job.
    cores
        Cores of the workers.
    one_by_one
        What a partition costs is paid by the driver alone, and not shared by the cores: nobody
        has measured how much of it is Spark's scheduler.
    """

    job: Job
    cores: int
    one_by_one: bool = False

    @property
    def partitions(self) -> int:
        """Shares of the key space, and queues of each topic."""
        return PARTITIONS_PER_CORE * self.cores

    @property
    def overhead(self) -> float:
        """Seconds of a batch that do not depend on its records."""
        return overhead(self.partitions, self.cores, one_by_one=self.one_by_one)

    @property
    def limits(self) -> dict[str, float]:
        """Records/s that each part manages, were it alone."""
        busy = max(LONGEST_BATCH - self.overhead, 0.0) / LONGEST_BATCH
        return {
            "workers": busy * self.cores / self.job.worker,
            "broker's core": 1 / self.job.broker,
            "broker's disk": CONSTANTS["append"].value * 1e6 / self.job.written,
            # In and out of the broker: messages to workers, results to the broker.
            "broker's network": NETWORK / max(INPUT_BYTES, self.job.written),
        }

    @property
    def rate(self) -> float:
        """Records/s of the whole."""
        return min(self.limits.values())

    @property
    def limit(self) -> str:
        """What gives out first."""
        return min(self.limits, key=self.limits.__getitem__)

    @property
    def busy(self) -> float:
        """How many of the cores have something to do."""
        return self.cores * self.rate / max(self.limits["workers"], 1e-9)

    def dollars(self, price: float, cores: float) -> float:
        """Give what a million records cost on so many cores, and the broker's."""
        return (cores + 1) * price / 3600 / self.rate * 1e6


def overhead(partitions: int, cores: int, *, one_by_one: bool = False) -> float:
    """Give the seconds of a batch that do not depend on its records."""
    # Two cores have shared what was measured.
    shared = CONSTANTS["partition"].value / (2 if one_by_one else cores)
    return CONSTANTS["batch"].value + partitions * (CONSTANTS["driver"].value + shared)


def restore_seconds(cores: int) -> float:
    """Give how long a state takes that no core has a copy of: by the cores, or by the network."""
    return max(KEYS / (CONSTANTS["restore"].value * cores), KEYS * INPUT_BYTES / NETWORK)


def modelled_on_two(job: Job) -> float:
    """Give the records/s that the model says of the two cores, broker included, of `make bench`."""
    work = _MEASURED_BATCH * (job.worker + job.broker) / 2
    return _MEASURED_BATCH / (overhead(_MEASURED_PARTITIONS, 2) + work)


def record_bytes(partitions: int) -> int:
    """Count the bytes of a commit record: a source with as many queues, and one state store."""
    states = [
        StateSummary(
            store="aggregate-1",
            partition=number,
            count=10_000,
            checksum=1 << 63,
            epoch=1,
            batch=100_000,
            attempt=1_000_000,
            end_offset=1_000_000,
        )
        for number in range(partitions)
    ]
    offsets = {f"events@broker-a@{number}": 1_000_000 for number in range(partitions)}
    record = CommitRecord(
        job="wide",
        kind="commit",
        epoch=1,
        batch=100_000,
        partitions=partitions,
        offsets=offsets,
        states=states,
    )
    return len(msgspec.json.encode(record))


def most_partitions(limit: int = MOST_BYTES) -> int:
    """Give how many partitions a commit record of at most so many bytes has room for."""
    low, high = 1, _MOST_PARTITIONS
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if record_bytes(middle) <= limit else (low, middle)
    return low


def _table(head: str, rows: Iterable[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "| --- |" + " ---: |" * (columns - 1), *rows]) + "\n"


def constants_table() -> str:
    """Write what was measured, and where."""
    rows = [f"| {name} | {c.value:g} {c.unit} | {c.where} |" for name, c in CONSTANTS.items()]
    return _table("| constant | value | where it was measured |", rows)


def jobs_table() -> str:
    """Write what a record costs, and what the model says of two cores beside what was measured."""
    head = (
        "| job | worker, µs | broker, µs | written, bytes"
        " | two cores by the model, records/s | measured, records/s | model / measured |"
    )
    rows = [
        f"| `{job.name}` | {job.worker * 1e6:.1f} | {job.broker * 1e6:.1f} | {job.written:g}"
        f" | {(said := modelled_on_two(job)):,.0f} | {job.measured:,.0f}"
        f" | {said / job.measured:.2f} |"
        for job in JOBS
    ]
    return _table(head, rows)


def scale_table(price: float = PRICE) -> str:
    """Write what more cores would do for one job on one broker."""
    head = (
        "| job | cores | records/s | first limit | cores with work"
        " | $ per million records, all cores | $, cores with work |"
    )
    return _table(head, [_scaled(Model(job, n), price) for job in JOBS for n in CORES[1:]])


def _scaled(model: Model, price: float) -> str:
    every = model.dollars(price, model.cores)
    needed = model.dollars(price, model.busy)
    return (
        f"| `{model.job.name}` | {model.cores:,} | {model.rate:,.0f} | {model.limit}"
        f" | {model.busy:,.1f} | {every:.6f} | {needed:.6f} |"
    )


def width_table() -> str:
    """Write what grows with the partitions alone."""
    head = (
        "| cores | partitions | control, kB per batch | commit record, kB | driver, s per batch"
        " | overhead, s: shared by the cores | overhead, s: one by one"
        f" | {KEYS:,} keys restored, s |"
    )
    return _table(head, [_width(cores) for cores in CORES])


def _width(cores: int) -> str:
    partitions = PARTITIONS_PER_CORE * cores
    return (
        f"| {cores:,} | {partitions:,} | {CONSTANTS['control'].value * partitions / 1000:,.1f}"
        f" | {record_bytes(partitions) / 1000:,.1f}"
        f" | {CONSTANTS['driver'].value * partitions:.4f}"
        f" | {overhead(partitions, cores):.2f}"
        f" | {overhead(partitions, cores, one_by_one=True):.2f}"
        f" | {restore_seconds(cores):,.1f} |"
    )


def pages(price: float = PRICE) -> Iterator[str]:
    """Give the tables of docs/explanation/scale.md, in its order."""
    yield constants_table()
    yield jobs_table()
    yield scale_table(price)
    yield width_table()
    yield f"A commit record of 4 MiB has room for {most_partitions():,} partitions.\n"


def measure_driver(width: int) -> float:
    """Measure the CPU of planning and committing a batch of one record, the broker's included."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
        Client(broker.address) as client,
    ):
        made = job_topics(client, width)
        with LocalDriver(broker.address, Path(folder), job=made, partitions=width) as driver:
            return statistics.median(_driver_seconds(driver, client) for _ in range(5))


def _driver_seconds(driver: LocalDriver, client: Client) -> float:
    send_one(client)
    begun = time.process_time()
    planned = driver.plan()
    planning = time.process_time() - begun
    end = driver.process(planned)
    begun = time.process_time()
    driver.commit(end)
    return planning + time.process_time() - begun


def measure_written(job: Job) -> float:
    """Measure how many bytes of its log the broker writes for a record of a job."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
        Client(broker.address) as client,
    ):
        made = _sent(job, client)
        log = Path(folder) / "broker" / "store" / "log"
        with LocalDriver(
            broker.address, Path(folder), batch_size=_WRITTEN, job=made, partitions=2
        ) as driver:
            before = sum(file.stat().st_size for file in log.iterdir())
            batches = driver.catch_up()
            after = sum(file.stat().st_size for file in log.iterdir())
    assert batches == 1, "the figures of a batch depend on its size"
    return (after - before) / _WRITTEN


def _sent(job: Job, client: Client) -> Topology:
    """Send what a batch of a job reads, and build the job, as `make bench` has it."""
    Admin(client).create_topic("results", queues=QUEUES)
    if job.name == "word_count_1k":
        send_lines(client, "lines", _WRITTEN, FULL.few_words)
        return word_count("scale", "lines", "results")
    pipeline = PIPELINES[job.name]
    assert pipeline.keys is not None
    send_events(client, ["events"], random_keys(_WRITTEN, pipeline.keys))
    return topology(pipeline, "scale", "results")


def measure() -> Iterator[tuple[str, float, str]]:
    """Measure on this machine what can be measured without Spark, in a minute."""
    wide, narrow = 256, 8
    driver = (measure_driver(wide) - measure_driver(narrow)) / (wide - narrow)
    yield "driver", driver, "core-s"
    size = 256 * 1024 * 1024
    rates = sorted(size / append_times(size)[1] / 1e6 for _ in range(3))
    yield "append", rates[1], "MB/s"
    for job in JOBS:
        yield f"written by {job.name}", measure_written(job), "bytes/record"


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure anew what needs no Spark")
    parser.add_argument("--price", type=float, default=PRICE, help="dollars of a core-hour")
    options = parser.parse_args()
    write: Callable[[str], object] = sys.stdout.write
    if options.measure:
        for name, value, unit in measure():
            known = PAGE[name]
            load = os.getloadavg()[0]
            write(f"{name}: {value:.3g} {unit} (the page has {known:g}); load {load:.1f}\n")
        return 0
    write("\n".join(pages(options.price)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
