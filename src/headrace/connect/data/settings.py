"""Where the jobs of all tasks run, and how they reach their cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from headrace.client import ClientSettings
from headrace.errors import SettingsError
from headrace.settings import JobSettings, usable_cores

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
