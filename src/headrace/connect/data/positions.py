"""Where a connector is: the positions in the commit records of its tasks, read and changed."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.client import Admin, Client, ClientSettings
from headrace.errors import NoPermissionError, SettingsError, TopicNotFoundError
from headrace.protocol.transactions import CommitRecord, Position, stored_positions
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.steps import StateStep
from headrace.settings import JobSettings, usable_cores
from headrace.spark.cluster import make_connection, prepare_topics
from headrace.topology import Topology
from headrace.topology.names import commit_topic, journal_topic
from headrace.topology.operators.core import Feed, FeedSink, Taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


# Where the jobs of all tasks run, and how they reach their cluster.

#: Where a task's host can be reached: its socket is a file of this machine.
_THREADS = re.compile(r"local(?:\[\s*(?P<cores>[1-9]\d*|\*)\s*(?:,\s*(?P<tries>\d+)\s*)?\])?")
_EXECUTORS = re.compile(r"local-cluster\[\s*([1-9]\d*)\s*,\s*([1-9]\d*)\s*,\s*\d+\s*\]")
#: Beside the batches that take turns, so many may wait for tasks whose code hangs.
_SPARE = 250
_SPARK = {
    # Rows do not pass Java: what it collects is little, and other collectors take more memory.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Xmn96m",
    # Nobody looks at what Spark remembers of batches that are over, and a hundred queries have many.
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
}
#: Settings of jobs that hold for tasks, too, besides how to connect.
_HANDED_ON = (
    "max_records_per_batch",
    "max_bytes_per_batch",
    "isolation",
    "on_expired_offset",
    "lease_expiry",
)
#: Most records of a batch whose sink takes columns, where nobody has set another number.
_COLUMN_RECORDS = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Where the jobs of all tasks run.

    Raises
    ------
    SettingsError
        Spark would run on other machines, which cannot reach the hosts of this one.

    Examples
    --------
    >>> given = JobSettings(access_key="connect", secret_key="hush")
    >>> settings = EngineSettings(namesrv="127.0.0.1:9876", folder=Path("engine"), jobs=given)
    >>> settings.job_settings().access_key, settings.client_settings.access_key
    ('connect', 'connect')
    """

    namesrv: str
    #: Folder for scratch files.
    folder: Path
    master: str = "local[2,4]"
    #: How long a batch may take: longer than a task may be stuck before it is forced to end.
    batch_timeout: timedelta = timedelta(minutes=10)
    spark_config: dict[str, str] = field(default_factory=dict)
    #: Accounts, TLS and time limits, and how much a batch reads.
    jobs: JobSettings = field(default_factory=JobSettings)

    def __post_init__(self) -> None:
        if not (_THREADS.fullmatch(self.master) or _EXECUTORS.fullmatch(self.master)):
            raise SettingsError(
                f"The setting master is {self.master!r}, but tasks of Connect run on their worker's"
                " own machine: their data goes over sockets that are files.",
                hint="Take local[N,F] or local-cluster[...], and run a worker on each machine.",
            )

    @property
    def cores(self) -> int:
        """So many batches run at once, and more only where some take long."""
        executors = _EXECUTORS.fullmatch(self.master)
        if executors is not None:
            return int(executors[1]) * int(executors[2])
        threads = _THREADS.fullmatch(self.master)
        assert threads is not None
        given = threads["cores"] or "1"
        return usable_cores() if given == "*" else int(given)

    @property
    def client_settings(self) -> ClientSettings:
        """How the engine's own client connects."""
        return ClientSettings(**self.jobs.connection)

    def job_settings(self, *, columns: bool = False) -> JobSettings:
        """Return the settings of one task's job, which may be a sink's that takes columns."""
        parallelism = {"spark.default.parallelism": str(self.cores)}
        handed_on = {name: getattr(self.jobs, name) for name in _HANDED_ON}
        if columns and self.jobs.max_records_per_batch == JobSettings().max_records_per_batch:
            handed_on["max_records_per_batch"] = _COLUMN_RECORDS
        return JobSettings(
            namesrv=self.namesrv,
            data_dir=self.folder,
            partitions=1,
            master=self._master,
            batch_timeout=self.batch_timeout,
            rollback_retries=2,
            spark_config={**_SPARK, **parallelism, **self.jobs.spark_config, **self.spark_config},
            **self.jobs.connection,
            **handed_on,
        )

    @property
    def _master(self) -> str:
        """Where Spark runs, with slots for batches that wait for code which hangs."""
        threads = _THREADS.fullmatch(self.master)
        if threads is None:
            return self.master
        tries = f",{threads['tries']}" if threads["tries"] else ""
        return f"local[{self.cores + _SPARE}{tries}]"


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,60}")


def task_job(connector: str, task: int) -> str:
    """Name the job of a task.

    Examples
    --------
    >>> task_job("orders", 0), task_job("naïve name", 1)
    ('connect-orders-0', 'connect-na-ve-name-cc005cd7-1')
    """
    if not _PLAIN.fullmatch(connector):
        safe = re.sub(r"[^A-Za-z0-9_-]", "-", connector)[:40]
        connector = f"{safe}-{zlib.crc32(connector.encode()):08x}"
    return f"connect-{connector}-{task}"


def stamp_of(generation: int) -> int:
    """Return what positions of a task's generation carry; odd stamps are changes between two.

    Examples
    --------
    >>> stamp_of(3), stamp_of(4)
    (6, 8)
    """
    return 2 * generation


def joined(records: Iterable[CommitRecord]) -> dict[str, Position]:
    """Join what several tasks have committed: of a partition, the latest generation holds.

    Examples
    --------
    >>> def record(offset, generation):
    ...     positions = {"p": Position(offset=offset, generation=generation)}
    ...     fields = {"job": "j", "kind": "commit", "epoch": 1, "batch": 1}
    ...     return CommitRecord(**fields, stored_positions=positions)
    >>> joined([record(7, 2), record(3, 4)])["p"].offset
    3
    """
    found: dict[str, Position] = {}
    for record in records:
        for partition, position in record.positions.items():
            known = found.get(partition)
            if known is None or position.generation > known.generation:
                found[partition] = position
    return found


def read_positions(client: Client, connector: str) -> dict[str, Any]:
    """Return the committed offset of each partition of a connector, by the partition's name."""
    positions = joined(record for _, record in _records(client, connector))
    return {name: one.offset for name, one in positions.items() if one.offset is not None}


def positions_elsewhere(client: Client, connector: str, task: int) -> dict[str, Position]:
    """Return what the records of other tasks than this one have."""
    own = task_job(connector, task)
    return joined(record for home, record in _records(client, connector) if home.job != own)


def forget_positions(client: Client, connector: str) -> None:
    """Remove the topics and groups of all tasks that a connector has ever had."""
    admin = Admin(client)
    topics = set(admin.topics())
    for job in _jobs(connector, topics):
        with suppress(NoPermissionError):
            admin.delete_group(job)
        # By its commit topic a job is found again, where this comes to its end half way.
        for topic in (journal_topic(job), commit_topic(job)):
            if topic in topics:
                admin.delete_topic(topic)


def _records(client: Client, connector: str) -> Iterator[tuple[StateHome, CommitRecord]]:
    """Yield the newest record of each task that the connector has ever had."""
    for job in _jobs(connector, Admin(client).topics()):
        home = StateHome.of(job, client)
        try:
            record = home.transactions.plan([], {}, 0, 0).record
        except TopicNotFoundError:
            continue
        if record is not None:
            yield home, record


def _jobs(connector: str, topics: Iterable[str]) -> list[str]:
    """Name the jobs of all tasks that have a commit topic; tasks make theirs in any order.

    >>> _jobs("a", ["connect-a-10-commitTopic", "connect-a-2-commitTopic", "connect-a-b-0-commitTopic"])
    ['connect-a-2', 'connect-a-10']
    """
    before, after = commit_topic(task_job(connector, 0)).rsplit("0", 1)
    form = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}")
    numbers = sorted(int(found[1]) for found in map(form.fullmatch, topics) if found)
    return [task_job(connector, number) for number in numbers]


class PositionChanges:
    """Commits other positions of a connector that does not run, or has never run.

    Each change is a batch of its own in the first task's commit topic, fenced by an epoch like any
    other; its stamp makes it newer than what is there, and older than the next generation.

    Parameters
    ----------
    client
        Connection to the cluster.
    connector
        Whose positions they are.
    settings
        How its tasks run: their topics are made where there are none.
    """

    def __init__(self, client: Client, connector: str, settings: EngineSettings) -> None:
        self._client = client
        self._connector = connector
        self._settings = settings

    def commit(self, positions: Mapping[str, Any], *, reset: bool = False) -> None:
        """Commit positions.

        Parameters
        ----------
        positions
            Offset of each partition; None forgets it.
        reset
            Forget all partitions that are not named.
        """
        found = list(_records(self._client, self._connector))
        if not (found or positions):
            return
        known = joined(record for _, record in found)
        stamp = max((one.generation for one in known.values()), default=0) | 1
        changed = {**(dict.fromkeys(known) if reset else {}), **positions}
        moved = {
            name: Position(offset=offset, generation=stamp) for name, offset in changed.items()
        }
        home = found[0][0] if found else self._made()
        try:
            _append(home, moved)
        finally:
            home.transactions.close()

    def _made(self) -> StateHome:
        """Make the topics of the first task, as its first start would."""
        job = task_job(self._connector, 0)
        settings = self._settings.job_settings()
        connection = make_connection(_empty(job), settings, self._settings.namesrv)
        try:
            prepare_topics(connection)
        finally:
            connection.close()
        return StateHome.of(job, self._client)


def _empty(job: str) -> Topology:
    """Name a job that moves nothing."""
    feed = Feed(name="poll", parents=(), intake=_Nothing())
    return Topology(job, (feed, FeedSink(name="topics", parents=("poll",))))


class _Nothing:
    def take(self, epoch: int, batch: int) -> Taken:
        raise NotImplementedError


def _append(home: StateHome, moved: Mapping[str, Position]) -> None:
    """Commit a batch that changes positions only, and publish it: nobody need wait for that."""
    before = home.transactions.open(str(DriverName.here())).record
    home.transactions.publish(before)
    positions = stored_positions({**before.positions, **moved})
    step = StateStep(home, before, before.partitions)
    step.commit(replace(before, stored_positions=positions))
