"""The settings of a job: each with its type, unit, default and meaning, in this one place.

``python -m headrace.settings`` prints the page ``docs/reference/settings.md``.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from headrace._setting import PREFIX, describe_default, environment_values, setting, validate
from headrace.durations import EXAMPLES
from headrace.errors import SettingsError

Guarantee = Literal["exactly_once", "at_least_once"]
"""What holds for each record after failures."""

Isolation = Literal["read_committed", "read_uncommitted"]
"""What a job reads of what other jobs write."""

StartPosition = Literal["first", "latest"]
"""Where a job starts that has never run."""

OnExpiredOffset = Literal["fail", "earliest"]
"""What a job does when the broker no longer holds what it must read next."""

_DEFAULT_PARTITIONS = 8
_OF_CLIENTS = (
    "connect_timeout",
    "request_timeout",
    "retry_timeout",
    "access_key",
    "secret_key",
    "security_token",
    "tls",
    "tls_verify",
    "tls_ca",
)


def usable_cores() -> int:
    """Count the cores that this process may use: a container may allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How a job runs, as opposed to what it computes.

    Every field may also be given as text, as environment variables and files do; durations are
    ``timedelta`` or text such as ``"500 ms"``.

    Raises
    ------
    SettingsError
        When a value cannot work; the message names the setting, its value and why.

    Examples
    --------
    >>> settings = JobSettings(partitions=4, batch_interval=timedelta(milliseconds=200))
    >>> settings.guarantee
    'exactly_once'
    >>> JobSettings(partitions=0)
    Traceback (most recent call last):
    headrace.errors.SettingsError: The setting partitions is 0: ...
    """

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
        unit="path",
    )
    state_dir: Path | None = setting(
        None,
        doc="Folder of the local copies of the state, on the machines of the workers; they are "
        "rebuilt when they are lost.",
        unit="path",
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
        unit="`read_committed` or `read_uncommitted`",
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
    batch_interval: timedelta = setting(
        timedelta(0),
        doc="Least time from the start of one batch to the start of the next.",
        unit="duration",
        minimum=timedelta(0),
    )
    batch_timeout: timedelta = setting(
        timedelta(minutes=2),
        doc="How long a batch may run before it is ended, rolled back and tried again.",
        unit="duration",
        minimum=timedelta(milliseconds=100),
    )
    rollback_retries: int = setting(
        5,
        doc="How often the job goes back to its last commit and tries again, without a commit in "
        "between, before it stops.",
        unit="tries",
        minimum=0,
    )
    driver_timeout: timedelta = setting(
        timedelta(seconds=60),
        doc="How long a driver may give no sign of life before `headrace run` kills it and starts "
        "another one.",
        unit="duration",
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
        unit="duration",
        minimum=timedelta(0),
    )
    on_expired_offset: OnExpiredOffset = setting(
        "fail",
        doc="What to do when a queue does not hold the offset at which the job must go on, as "
        "messages were deleted or lost: stop, or go on at the earliest message that is left.",
    )
    allow_state_loss: bool = setting(
        default=False,
        doc="Whether a start drops the state of operators that are gone or have changed.",
        unit="true or false",
        shown="false",
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
        unit="duration",
        minimum=timedelta(seconds=2),
    )
    archive: Path | None = setting(
        None,
        doc="Archive that `headrace pack` has made, with a Python for the workers of a cluster: "
        "their machines need nothing but Java and Spark.",
        unit="path",
        shown="none",
    )
    py_files: tuple[Path, ...] = setting(
        (),
        doc="Modules, zip files and wheels that workers import besides.",
        unit="path,...",
        shown="none",
    )
    connect_timeout: timedelta = setting(
        timedelta(seconds=5),
        doc="How long an address that has never answered is tried before it counts as wrong.",
        unit="duration",
        minimum=timedelta(milliseconds=1),
    )
    request_timeout: timedelta = setting(
        timedelta(seconds=10),
        doc="Longest wait for a broker's answer.",
        unit="duration",
        minimum=timedelta(milliseconds=1),
    )
    retry_timeout: timedelta = setting(
        timedelta(seconds=60),
        doc="How long a request is tried again while a broker that has answered is away.",
        unit="duration",
        minimum=timedelta(0),
    )

    access_key: str | None = setting(
        None,
        doc="Name of the account that signs requests, where the cluster has access control.",
        unit="text",
        shown="none",
    )
    secret_key: str | None = setting(
        None,
        doc="Secret of that account; better given as a variable, as others see options.",
        unit="text",
        shown="none",
        secret=True,
    )
    security_token: str | None = setting(
        None,
        doc="Token that a temporary account needs besides.",
        unit="text",
        shown="none",
        secret=True,
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
    tls: bool = setting(
        default=False,
        doc="Whether connections to the cluster use TLS.",
        unit="true or false",
        shown="false",
    )
    tls_verify: bool = setting(
        default=True,
        doc="Whether the cluster's certificates must be trusted and hold the brokers' names.",
        unit="true or false",
        shown="true",
    )
    tls_ca: Path | None = setting(
        None,
        doc="File of the certificates that are trusted, in PEM format; the driver reads it when the "
        "job starts, and workers need none.",
        unit="path",
        shown="those of the system",
    )

    lease_expiry: timedelta = setting(
        timedelta(seconds=60),
        doc="On RocketMQ: how long brokers keep a lock without a word; a driver publishes only while"
        " it holds one, and its successor may have to wait so long. Theirs is the property"
        " rocketmq.broker.rebalance.lockMaxLiveTime.",
        unit="duration",
        shown="60 s",
        minimum=timedelta(seconds=1),
    )

    def __post_init__(self) -> None:
        validate(self)
        if isinstance(self.start, datetime) and self.start.tzinfo is None:
            message = f"The setting start is {self.start}, a time without a zone."
            raise SettingsError(message, hint="Write for example 2026-05-01T12:00:00+00:00.")
        if (self.access_key is None) != (self.secret_key is None):
            lacking = "secret_key" if self.secret_key is None else "access_key"
            message = f"The setting {lacking} is missing: requests are signed with both keys."
            raise SettingsError(message, hint="Give access_key and secret_key, or neither.")

    @property
    def connection(self) -> dict[str, Any]:
        """What the settings of a client have in common with a job's, by name."""
        return {name: getattr(self, name) for name in _OF_CLIENTS}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> JobSettings:
        """Take settings from ``HEADRACE_*`` variables; those in ``given`` win.

        Parameters
        ----------
        environ
            The variables; the process's own environment by default.
        given
            Settings by name.  ``None`` means not given.

        Raises
        ------
        SettingsError
            When a value cannot work, or a variable looks like a misspelt setting.

        Examples
        --------
        >>> JobSettings.from_env({"HEADRACE_PARTITIONS": "3"}, start="latest").partitions
        3
        """
        values: dict[str, Any] = dict(
            environment_values(cls, os.environ if environ is None else environ)
        )
        values.update({name: value for name, value in given.items() if value is not None})
        return cls(**values)

    @property
    def local_state(self) -> Path:
        """The folder of the local copies of the state."""
        return self.data_dir / "state" if self.state_dir is None else self.state_dir


def settings_page() -> str:
    """Write the page ``docs/reference/settings.md``."""
    lines = [
        "# Settings of a job",
        "",
        "Made from `src/headrace/settings.py` by `python -m headrace.settings`.",
        "A test holds it against the code.",
        "",
        "In Python each is a field of `JobSettings`.",
        "On the command line it is an option of `headrace run`, with dashes for underscores.",
        "An option wins over the environment variable, and the variable over the default.",
        "",
        "| setting | environment variable | type or unit | default | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for field in dataclasses.fields(JobSettings):
        unit = field.metadata["unit"] or _choices(field)
        lines.append(
            f"| `{field.name}` | `{PREFIX}{field.name.upper()}` | {unit} "
            f"| {describe_default(field)} | {field.metadata['doc']} |"
        )
    examples = ", ".join(f"`{one}`" for one in EXAMPLES)
    lines += ["", f"A duration is a number and a unit: {examples}.", ""]
    return "\n".join(lines)


def _choices(field: dataclasses.Field[Any]) -> str:
    choices = get_args(get_type_hints(JobSettings)[field.name])
    return " or ".join(f"`{choice}`" for choice in choices)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
