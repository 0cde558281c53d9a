"""The progress and speed of a job, and its plan on the way to the workers."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import platform
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import cloudpickle

from headrace.errors import HeadraceError, TopologyError, UnsafeFileError, WorkerMismatchError
from headrace.runtime.job_plan import JobPlan
from headrace.runtime.standing import (
    OperatorStatistics as OperatorStatistics,  # noqa: PLC0414
    QueueLag,
    longest,
    operator_statistics,
)
from headrace.serdes.base import travelling_with

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from headrace.protocol.transactions import CommitRecord, QueueName
    from headrace.runtime.commit.drivers import LeaseWait
    from headrace.spark.batches.failures import BatchSinkStatistics
    from headrace.topology import Topology


# A job's plan on its way to the workers: pickled once, together with the versions that made it.
#
# A worker reads the versions before it unpickles anything.  A plan is a tree of our own frozen
# classes with the user's functions in it.  Fields travel by name, so that a worker of another
# version finds each where it belongs, or can say which one it does not know.

#: How many leading numbers of each version must be equal; other packages may differ.
_EQUAL = {"headrace": 2, "python": 2, "pyspark": 2, "cloudpickle": 1}
_PLAIN = (type(None), bool, int, float, str, bytes, timedelta)
_SERIALIZERS = ("pyarrow", "msgspec", "numpy")
_HINT = (
    "bring all machines to one version; docs/guides/operate/upgrade.md says what may differ,"
    " and by how much"
)


@dataclass(frozen=True)
class PlanHandle:
    """A job's plan, pickled once by the driver and unpickled once by each worker."""

    digest: str
    #: Versions as JSON, a line feed, and a pickle.  Never shown, as it holds the job's secrets.
    payload: bytes = field(repr=False)


@cache
def own_versions() -> dict[str, str]:
    """Return the versions of the packages that make a plan in this process, by name."""
    own = {"python": platform.python_version(), "cloudpickle": cloudpickle.__version__}
    for name in ("headrace", "pyspark", *_SERIALIZERS):
        try:
            own[name] = version(name)
        except PackageNotFoundError:
            # The package is not installed; it runs from a folder on the path.
            module = sys.modules.get(name)
            own[name] = str(getattr(module, "__version__", "unknown"))
    return own


def pickle_plan(plan: JobPlan) -> PlanHandle:
    """Pickle a plan, with the user's functions by value where workers cannot import them.

    Spark's settings do not travel: only the driver needs them, and they may hold secrets.

    Raises
    ------
    TopologyError
        Something in the plan cannot be pickled.
    """
    plan = replace(plan, settings=replace(plan.settings, spark_config={}))
    modules = _user_modules(plan.topology)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    pickled = io.BytesIO()
    try:
        with travelling_with(plan.pickle_secret):
            _Pickler(pickled).dump(plan)  # type: ignore[no-untyped-call]
    except UnsafeFileError:
        raise
    except Exception as error:
        names = ", ".join(sorted(module.__name__ for module in modules)) or "none"
        raise TopologyError(
            f"job '{plan.job}' cannot be sent to Spark's workers: {type(error).__name__}: {error}",
            hint="the program and the modules beside it travel by value"
            f" ({names}): keep locks, connections and cached properties out of what the pipeline's"
            " functions use, or install those modules where the workers find them",
        ) from error
    payload = b"\n".join((msgspec.json.encode(own_versions()), pickled.getvalue()))
    return PlanHandle(hashlib.sha256(payload).hexdigest(), payload)


def unpickle_plan(payload: bytes) -> JobPlan:
    """Return the plan of a handle's payload, in a worker.

    Raises
    ------
    WorkerMismatchError
        This process runs other versions than the driver, or lacks a module that the job needs.
    """
    header, _, pickled = payload.partition(b"\n")
    theirs = msgspec.json.decode(header, type=dict[str, str])
    _check_versions(theirs)
    try:
        plan = pickle.loads(pickled)  # noqa: S301 - made by our own driver
    except HeadraceError:
        raise
    except ModuleNotFoundError as error:
        raise WorkerMismatchError(
            f"machine {_machine()} has no module named '{error.name}', which the job needs",
            hint=f"install it for {sys.executable} on every machine",
        ) from error
    except (AttributeError, ImportError, TypeError) as error:
        own = own_versions()
        raise WorkerMismatchError(
            f"machine {_machine()} cannot read the job's plan: {error}; the driver has"
            f" {shown(theirs, sorted(theirs))}, the worker {shown(own, sorted(own))}",
            hint=_HINT,
        ) from error
    assert isinstance(plan, JobPlan)
    return plan


def differing(theirs: Mapping[str, str]) -> list[str]:
    """Return the packages whose versions differ from those here by more than is allowed."""
    own = own_versions()
    names = [name for name in _EQUAL if name in theirs]
    return [name for name in names if _told(name, theirs) != _told(name, own)]


def shown(versions: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the versions of these packages as text for an error."""
    return ", ".join(f"{name} {versions.get(name, 'unknown')}" for name in names)


def _check_versions(theirs: Mapping[str, str]) -> None:
    own = own_versions()
    if differ := differing(dict.fromkeys(_EQUAL, "unknown") | dict(theirs)):
        raise WorkerMismatchError(
            f"machine {_machine()} runs {shown(own, differ)}, and the driver of the job"
            f" {shown(theirs, differ)}",
            hint=_HINT,
        )


def _told(name: str, versions: Mapping[str, str]) -> list[str]:
    """Return the numbers of a version that must be equal."""
    return versions.get(name, "unknown").split(".")[: _EQUAL[name]]


def _machine() -> str:
    return socket.gethostname()


class _Pickler(cloudpickle.CloudPickler):
    """Pickles the fields of our own classes by name, where Python would use their positions."""

    def reducer_override(self, obj: Any) -> Any:
        kind: type = type(obj)
        if kind.__module__.startswith("headrace.") and _goes_by_places(kind):
            fields = [each for each in dataclasses.fields(kind) if hasattr(obj, each.name)]
            values = {each.name: getattr(obj, each.name) for each in fields}
            unset = [each.name for each in fields if _is_default(values[each.name], each)]
            return _by_name, (kind, values, unset)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


@cache
def _goes_by_places(kind: type) -> bool:
    """Return whether Python pickles instances as a list of fields, as for frozen slots."""
    state = getattr(kind, "__getstate__", None)
    return dataclasses.is_dataclass(kind) and getattr(state, "__module__", "") == "dataclasses"


def _is_default(value: object, each: dataclasses.Field[Any]) -> bool:
    """Return whether a field has its default, as far as plain values and empty ones show it."""
    if each.default_factory is not dataclasses.MISSING:
        default = each.default_factory()
    else:
        default = each.default
    if type(value) is not type(default):
        return False
    return value == default if isinstance(value, _PLAIN) else not value and not default


def _by_name(kind: Any, values: dict[str, Any], unset: Sequence[str]) -> object:
    """Make an instance of one of our classes from its fields; ``unset`` ones have defaults."""
    made, fields = object.__new__(kind), {each.name: each for each in dataclasses.fields(kind)}
    if unknown := sorted(values.keys() - fields.keys() - {*unset}):
        raise WorkerMismatchError(
            f"machine {_machine()} knows no {', '.join(unknown)} of {kind.__name__}, which the"
            " driver of the job has set: it runs an older version of headrace"
            f" ({own_versions()['headrace']})",
            hint=_HINT,
        )
    for name, each in fields.items():
        if name in values:
            object.__setattr__(made, name, values[name])
        elif each.default is not dataclasses.MISSING:
            object.__setattr__(made, name, each.default)
        elif each.default_factory is not dataclasses.MISSING:
            object.__setattr__(made, name, each.default_factory())
        elif each.init:
            raise WorkerMismatchError(
                f"machine {_machine()} must know {name} of {kind.__name__}, which the driver of"
                " the job does not set: it runs a newer version of headrace"
                f" ({own_versions()['headrace']})",
                hint=_HINT,
            )
    return made


def _user_modules(topology: Topology) -> list[ModuleType]:
    """Return the modules beside the user's program, which workers cannot import."""
    folders = {
        Path(operator.origin.file).resolve().parent
        for operator in topology.operators
        if operator.origin is not None
    }
    return [
        module
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "headrace") and "." not in name and _home(module) in folders
    ]


def _home(module: ModuleType) -> Path | None:
    """Return the folder from which a top-level module is imported."""
    file = getattr(module, "__file__", None)
    if not file:
        return None
    folder = _folder_of(file)
    return folder.parent if hasattr(module, "__path__") else folder


@cache
def _folder_of(file: str) -> Path:
    return Path(file).resolve().parent


_BATCHES_IN_RATE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatistics:
    """The progress of a job at one moment."""

    #: Whether the job runs, or may go on by itself.
    running: bool
    #: The job's epoch, which rises with every start and every roll-back.
    epoch: int
    #: The last committed batch.
    batch: int
    #: Messages read (or tuples emitted by spouts), and messages written, since its first batch.
    records_in: int
    records_out: int
    #: Messages and records left out after an error, by whether a dead letter was sent.
    skipped: int
    dead_lettered: int
    #: Messages in the source topics that are not committed yet; None before the first commit.
    lag: int | None
    #: Time between the last two commits.
    batch_duration: timedelta
    #: Messages read per second, over the last batches of this start.
    records_per_second: float
    #: Age of the oldest message of the lag; None if it is unknown.
    behind: timedelta | None
    #: Keys in all state stores, and bytes of keys and values.
    state_keys: int
    state_bytes: int
    #: State messages that the running restores have read, and those that they still have to read.
    restored: int
    to_restore: int
    #: How often the job went on after a failure since this start.
    restarts: int
    #: The work of each operator since the job's first batch, by name.
    operators: Mapping[str, OperatorStatistics]
    #: The progress of each ``for_each_batch`` and ``sink_dataframe``, by name.
    batches: Mapping[str, BatchSinkStatistics]
    #: How many jobs these numbers cover, and how many of them have failed for good.
    groups: int = 1
    failed: int = 0
    #: The lease of another driver that a start waits for, if any.
    waiting: LeaseWait | None = None
    #: Bytes of keys and values read from outside systems, and of messages written to them.
    outside_bytes: int = 0


def total(found: Sequence[JobStatistics]) -> JobStatistics:
    """Sum up the statistics of jobs that run together, the groups of one topology.

    The sum runs while all jobs run; its epoch and batch duration are the highest ones; its lag is
    known if that of every job is, and its age is the highest known one.
    """
    lags = [one.lag for one in found]
    ages = [one.behind for one in found]
    return JobStatistics(
        running=all(one.running for one in found),
        epoch=max((one.epoch for one in found), default=0),
        batch=sum(one.batch for one in found),
        records_in=sum(one.records_in for one in found),
        records_out=sum(one.records_out for one in found),
        skipped=sum(one.skipped for one in found),
        dead_lettered=sum(one.dead_lettered for one in found),
        lag=None if not found or None in lags else sum(lag for lag in lags if lag is not None),
        behind=max((age for age in ages if age is not None), default=None),
        batch_duration=max((one.batch_duration for one in found), default=timedelta(0)),
        records_per_second=sum(one.records_per_second for one in found),
        state_keys=sum(one.state_keys for one in found),
        state_bytes=sum(one.state_bytes for one in found),
        restored=sum(one.restored for one in found),
        to_restore=sum(one.to_restore for one in found),
        restarts=sum(one.restarts for one in found),
        operators={name: each for one in found for name, each in one.operators.items()},
        batches={name: each for one in found for name, each in one.batches.items()},
        groups=len(found),
        failed=sum(one.failed for one in found),
        outside_bytes=sum(one.outside_bytes for one in found),
        waiting=next((one.waiting for one in found if one.waiting is not None), None),
    )


class Meter:
    """Collects what :class:`JobStatistics` shows."""

    def __init__(self) -> None:
        self._commits: deque[tuple[float, int]] = deque(maxlen=_BATCHES_IN_RATE + 1)

    def committed(self, record: CommitRecord) -> None:
        """Record a commit."""
        self._commits.append((time.monotonic(), record.counters.get("records_in", 0)))

    def statistics(
        self,
        record: CommitRecord | None,
        lag: Mapping[QueueName, QueueLag] | None,
        restore: tuple[int, int],
        *,
        running: bool,
        batches: Mapping[str, BatchSinkStatistics],
        restarts: int = 0,
        waiting: LeaseWait | None = None,
    ) -> JobStatistics:
        """Return the statistics of the job."""
        commits = list(self._commits)
        rate = 0.0
        duration = 0.0
        if len(commits) > 1:
            (first, before), (last, after) = commits[0], commits[-1]
            rate = (after - before) / max(last - first, 1e-9)
            duration = last - commits[-2][0]
        counters = record.counters if record else {}
        return JobStatistics(
            running=running,
            epoch=record.epoch if record else 0,
            batch=record.batch if record else 0,
            records_in=counters.get("records_in", 0),
            records_out=counters.get("records_out", 0),
            skipped=counters.get("skipped", 0),
            dead_lettered=counters.get("dead_lettered", 0),
            lag=None if lag is None else sum(queue.messages for queue in lag.values()),
            behind=None if lag is None else longest(lag.values()),
            batch_duration=timedelta(seconds=duration),
            records_per_second=rate,
            state_keys=sum(state.count for state in record.states) if record else 0,
            state_bytes=sum(state.size for state in record.states) if record else 0,
            restored=restore[0],
            to_restore=restore[1],
            restarts=restarts,
            operators={} if record is None else operator_statistics(record, lag),
            batches=batches,
            failed=int(not running),
            waiting=waiting,
            outside_bytes=counters.get("outside_bytes", 0),
        )
