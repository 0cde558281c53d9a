"""The settings of a job and its connections: each with type, unit, default, meaning and check.

``python -m headrace.settings`` prints the page ``docs/reference/settings.md``, which has all others
too.
"""

from __future__ import annotations

import dataclasses
import os
import pkgutil
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from headrace._setting import (
    SHORTEST,
    DeclaredSettings,
    describe_default,
    describe_kind,
    setting,
    settings_of,
    variable_of,
)
from headrace.durations import EXAMPLES
from headrace.errors import SettingsError

Guarantee = Literal["exactly_once", "at_least_once"]
"""What holds for each record after failures."""

Isolation = Literal["read_committed", "read_uncommitted"]
"""What a job reads of what other jobs write."""

Executor = Literal["micro-batch", "resident"]
"""What runs the batches of a job."""

StartPosition = Literal["first", "latest"]
"""Where a job starts that has never run."""

OnExpiredOffset = Literal["fail", "earliest"]
"""What a job does when the broker no longer holds what it must read next."""

_DEFAULT_PARTITIONS = 8


def usable_cores() -> int:
    """Count the cores that this process may use: a container may allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(DeclaredSettings):
    """How a cluster is reached: the same for a job and for a client."""

    PANELS: ClassVar[Mapping[str, str]] = {"connect_timeout": "Connection"}

    connect_timeout: timedelta = setting(
        timedelta(seconds=5),
        doc="How long an address that has never answered is tried before it counts as wrong.",
        minimum=SHORTEST,
    )
    request_timeout: timedelta = setting(
        timedelta(seconds=10),
        doc="Longest wait for a broker's answer.",
        minimum=SHORTEST,
    )
    retry_timeout: timedelta = setting(
        timedelta(seconds=60),
        doc="How long a request is tried again while a broker that has answered is away.",
    )
    access_key: str | None = setting(
        None,
        doc="Name of the account that signs requests, where the cluster has access control.",
    )
    secret_key: str | None = setting(
        None,
        doc="Secret of that account; better given as a variable, as others see options.",
        secret=True,
    )
    security_token: str | None = setting(
        None,
        doc="Token that a temporary account needs besides.",
        secret=True,
    )
    tls: bool = setting(
        default=False,
        doc="Whether connections to the cluster use TLS.",
    )
    tls_verify: bool = setting(
        default=True,
        doc="Whether the cluster's certificates must be trusted and hold the brokers' names.",
    )
    tls_ca: Path | None = setting(
        None,
        doc="File of the certificates that are trusted, in PEM format; the driver of a "
        "job reads it at its start, and workers need none.",
        shown="those of the system",
    )

    def __post_init__(self) -> None:
        DeclaredSettings.__post_init__(self)
        if (self.access_key is None) != (self.secret_key is None):
            access, secret = map(self.name_of, ("access_key", "secret_key"))
            lacking = self.TOLD_AS.format(secret if self.secret_key is None else access)
            message = f"The {lacking} is missing: requests are signed with both keys."
            raise SettingsError(message, hint=f"Give {access} and {secret}, or neither.")

    @property
    def connection(self) -> dict[str, Any]:
        """The settings of the connection alone, by name."""
        return {field.name: getattr(self, field.name) for field in settings_of(ConnectionSettings)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(ConnectionSettings):
    """How a job runs, as opposed to what it computes.

    Every field may also be given as text, as environment variables and files do; durations are
    ``timedelta`` or text such as ``"500 ms"``.

    Raises
    ------
    SettingsError
        When a value cannot work; the message names the setting, its value and why.

    Examples
    --------
    >>> settings = JobSettings(partitions=4, commit_interval=timedelta(milliseconds=200))
    >>> settings.guarantee
    'exactly_once'
    >>> JobSettings(partitions=0)
    Traceback (most recent call last):
    headrace.errors.SettingsError: The setting partitions is 0: ...
    """

    PANELS: ClassVar[Mapping[str, str]] = {"connect_timeout": "Connection", "namesrv": "Settings"}

    namesrv: str | None = setting(
        None,
        doc="Address of the name server; without one the job uses the embedded broker of data_dir.",
        unit="host:port",
        shown="the embedded broker",
        pattern=r"^[^\s:;]+:\d{1,5}(;[^\s:;]+:\d{1,5})*$",
    )
    data_dir: Path = setting(
        Path(".headrace"),
        doc="Folder of the embedded broker's data and of the job's local state.",
    )
    state_dir: Path | None = setting(
        None,
        doc="Folder of the local copies of the state, on the machines of the workers; they are "
        "rebuilt when they are lost.",
        shown="state, in data_dir",
    )
    partitions: int = setting(
        make=lambda: min(_DEFAULT_PARTITIONS, usable_cores()),
        doc="Shares of the key space that work side by side; belongs to the job and its state.",
        unit="partitions",
        shown="the cores of the machine, at most 8",
        minimum=1,
    )
    guarantee: Guarantee = setting(
        "exactly_once",
        doc="What holds after failures: every result once, or at least once.",
    )
    isolation: Isolation | None = setting(
        None,
        doc="On RocketMQ: whether sources give what other jobs write once it is committed and each "
        "message once, or all that lies in their topics. An embedded broker shows nothing else.",
        shown="read_committed where the guarantee is exactly_once",
    )
    max_records_per_batch: int = setting(
        100_000,
        doc="Most records that one batch reads, over all queues.",
        unit="records",
        minimum=1,
    )
    max_bytes_per_batch: int = setting(
        64 << 20,
        doc="Most bytes of messages that one batch reads, over all queues; a larger message makes a "
        "batch of its own. About, on RocketMQ, whose brokers do not tell sizes: they are estimated "
        "by samples.",
        unit="bytes",
        minimum=1,
    )
    executor: Executor = setting(
        "micro-batch",
        doc="What runs the batches: a query of Spark for each, or tasks that live as long as the"
        " driver's epoch and exchange records themselves.",
    )
    commit_interval: timedelta = setting(
        timedelta(milliseconds=20),
        doc="Least time from one commit to the next. It is a distance and no timer: what comes after"
        " a pause is committed at once. A micro-batch takes longer than 100 ms in any case, so less"
        " than that makes none of them wait.",
    )
    batch_timeout: timedelta = setting(
        timedelta(minutes=2),
        doc="How long a batch may run before it is ended, rolled back and tried again.",
        minimum=timedelta(milliseconds=100),
    )
    rollback_retries: int = setting(
        5,
        doc="How often the job goes back to its last commit and tries again, without a commit in "
        "between, before it stops.",
        unit="tries",
    )
    driver_timeout: timedelta = setting(
        timedelta(seconds=60),
        doc="How long a driver may give no sign of life before `headrace run` kills it and starts "
        "another one.",
        minimum=timedelta(seconds=5),
    )
    poison: str = setting(
        "fail",
        doc="What becomes of records that an operator without `on_error` cannot handle: stop the "
        "job, leave them out, or send their messages to a topic in the same transaction.",
        unit="`fail`, `skip` or `topic:NAME`",
        pattern=r"^(fail|skip|topic:\S+)$",
    )
    start: StartPosition | datetime = setting(
        "first",
        doc="Where a job begins that has never run: at the first message of a queue, after the "
        "latest, or at the first one stored at a time; a source may say otherwise.",
        unit="`first`, `latest` or a time with a zone",
    )
    max_future: timedelta = setting(
        timedelta(days=1),
        doc="How far ahead of its store time a record may be and still move event time; a source "
        "may say otherwise.",
    )
    on_expired_offset: OnExpiredOffset = setting(
        "fail",
        doc="What to do when a queue does not hold the offset at which the job must go on, as "
        "messages were deleted or lost: stop, or go on at the earliest message that is left.",
    )
    allow_state_loss: bool = setting(
        default=False,
        doc="Whether a start drops the state of operators that are gone or have changed.",
    )
    master: str = setting(
        make=lambda: f"local[{usable_cores()},4]",
        doc="Where Spark runs; in local[N,F] a task may fail F times before the job stops.",
        unit="Spark master",
        shown="local[N,4], N being the cores",
        pattern=r"^\S+$",
    )
    spark_config: Mapping[str, str] = setting(
        make=dict,
        doc="More settings for Spark, which win over ours.",
        unit="key=value,...",
        shown="none",
        secret=True,
    )
    worker_timeout: timedelta = setting(
        timedelta(seconds=20),
        doc="How long a machine of Spark's cluster may be silent before its tasks run elsewhere.",
        minimum=timedelta(seconds=2),
    )
    archive: Path | None = setting(
        None,
        doc="Archive that `headrace pack` has made, with a Python for the workers of a cluster: "
        "their machines need nothing but Java and Spark.",
    )
    py_files: tuple[Path, ...] = setting(
        (),
        doc="Modules, zip files and wheels that workers import besides.",
        unit="path,...",
    )

    pickle_secret: str | None = setting(
        None,
        doc="Key of the signatures under the job's pickles, where it has any: the same one on every "
        "machine that runs a driver of the job.",
        unit="text, at least 16 bytes",
        shown="made at the first start, in data_dir",
        pattern=r"^\S{16,}$",
        secret=True,
    )

    lease_expiry: timedelta = setting(
        timedelta(seconds=60),
        doc="On RocketMQ: how long brokers keep a lock without a word; a driver publishes only while"
        " it holds one, and its successor may have to wait so long. Theirs is the property"
        " rocketmq.broker.rebalance.lockMaxLiveTime.",
        minimum=timedelta(seconds=1),
    )

    def __post_init__(self) -> None:
        ConnectionSettings.__post_init__(self)
        if isinstance(self.start, datetime) and self.start.tzinfo is None:
            message = f"The setting start is {self.start}, a time without a zone."
            raise SettingsError(message, hint="Write for example 2026-05-01T12:00:00+00:00.")

    @property
    def local_state(self) -> Path:
        """The folder of the local copies of the state."""
        return self.data_dir / "state" if self.state_dir is None else self.state_dir


#: Each kind of settings: its heading, where it stands (above this module), and how it is given.
_SECTIONS = (
    (
        "Jobs",
        "headrace.settings:JobSettings",
        "Fields of `JobSettings`, options of `headrace run`; those of the connection are, too.",
    ),
    (
        "Connections",
        "headrace.settings:ConnectionSettings",
        "Fields of `JobSettings` and `ClientSettings`, options of all commands that connect.",
    ),
    (
        "Clients",
        "headrace.client:ClientSettings",
        "Fields of `ClientSettings`, beside those of the connection.",
    ),
    (
        "Broker",
        "headrace.broker:BrokerSettings",
        "Fields of `BrokerSettings`, options of `headrace broker`.",
    ),
    (
        "Limits of a broker",
        "headrace.broker:Limits",
        "Fields of `Limits`; `headrace broker --limit NAME=VALUE`, as often as needed.",
    ),
    (
        "Compaction",
        "headrace.store.compaction:CompactionSettings",
        "Fields of `CompactionSettings`; `headrace broker --compaction NAME=VALUE`, like limits.",
    ),
    (
        "Connect's workers",
        "headrace.connect.worker:WorkerSettings",
        "Fields of `WorkerSettings`, options of `headrace connect worker`.",
    ),
)


def settings_page() -> str:
    """Write the page ``docs/reference/settings.md``."""
    examples = ", ".join(f"`{one}`" for one in EXAMPLES)
    lines = [
        "# Settings",
        "",
        "Made from the code by `python -m headrace.settings`; a test holds it against the code.",
        "",
        "Each is a field, and an option with dashes for underscores, or what the table says.",
        "An option wins over the environment variable, and the variable over the default.",
        f"A duration is a number and a unit: {examples}.",
        "Bytes are a number, or one with a unit: `4096`, `500 MB`, `64 MiB`.",
        "What takes several has them with commas between; an option may also be given again.",
        "",
    ]
    for heading, kind, given in _SECTIONS:
        lines += [f"## {heading}", "", given, "", *_table(pkgutil.resolve_name(kind)), ""]
    return "\n".join(lines)


def _table(kind: type[DeclaredSettings]) -> list[str]:
    columns = ["setting", "environment variable", "type or unit", "default", "meaning"]
    of_others = {field.name for field in settings_of(ConnectionSettings)}
    rows = [
        [
            f"`{field.name}`" + (f", `{option}`" if (option := field.metadata["option"]) else ""),
            f"`{variable_of(kind, field)}`",
            describe_kind(kind, field),
            describe_default(field),
            field.metadata["doc"],
        ]
        for field in settings_of(kind)
        if kind is ConnectionSettings or field.name not in of_others
    ]
    table = [columns, ["---"] * len(columns), *rows]
    if not kind.VARIABLES:
        table = [[row[0], *row[2:]] for row in table]
    return [f"| {' | '.join(row)} |" for row in table]


if __name__ == "__main__":
    # The module of that name, whose classes the other settings derive from.
    sys.stdout.write(pkgutil.resolve_name("headrace.settings:settings_page")())
