"""Figures for Prometheus, read from the worker when somebody asks."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.connect.rest.calls import RefusedRequests
    from headrace.connect.rest.operations import Operation
    from headrace.connect.worker import Connect, UnitReport

__all__ = ["Metrics"]

_PREFIX = "headrace_connect"

#: Figures of tasks that only rise, by their names.
_MOVED = {
    "records": "Rows that a task has read and committed.",
    "bytes": "Bytes of these rows.",
    "written": "Messages that a task has written to topics.",
    "commits": "Batches that a task has committed.",
    "rollbacks": "Batches of a task that failed and were begun anew.",
}
#: What has failed in a task, by Kafka Connect's names.
_ERRORS = {
    "total-record-failures": "Tries that failed.",
    "total-record-errors": "Records that failed for good.",
    "total-records-skipped": "Records that were left out.",
    "total-retries": "Tries after the first.",
    "total-errors-logged": "Failures that were logged.",
    "deadletterqueue-produce-requests": "Dead letters.",
    "deadletterqueue-produce-failures": "Dead letters that could not be written.",
}
_LAST_ERROR = "last-error-timestamp"
_WAITS = "Whether a task waits for something outside: a peer, a topic, the brokers."
_LAG = "Messages in the queues of a sink's task that are not committed yet."


class Metrics:
    """The figures of one worker, in a registry of their own.

    Parameters
    ----------
    connect
        Whose figures they are.
    refusals
        What its server has refused.
    """

    #: What the text is, in words of HTTP.
    media_type = CONTENT_TYPE_LATEST

    def __init__(self, connect: Connect, refusals: RefusedRequests) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}_rest_requests",
            "Requests that were answered.",
            ["method", "path", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_rest_request_seconds",
            "Time until the answer.",
            ["method", "path"],
            registry=self._registry,
        )
        self._registry.register(_Figures(connect, refusals))

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(operation.method, operation.path, str(status)).inc()
        self._seconds.labels(operation.method, operation.path).observe(seconds)

    def text(self) -> bytes:
        """Write all figures down."""
        return generate_latest(self._registry)


class _Figures(Collector):
    def __init__(self, connect: Connect, refusals: RefusedRequests) -> None:
        self._connect = connect
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        yield self._of_the_guards()
        yield from self._of_the_cluster()
        yield from self._of_the_worker()
        yield from self._of_the_tasks()
        yield from self._of_the_errors()

    def _of_the_guards(self) -> Metric:
        says = "Requests that were refused before anything looked at them, by reason."
        family = CounterMetricFamily(f"{_PREFIX}_rest_refused", says, labels=("reason",))
        for reason, count in sorted(self._refusals.counts.items()):
            family.add_metric((reason,), count)
        return family

    def _of_the_cluster(self) -> Iterator[Metric]:
        connectors: Tally[tuple[str, str]] = Tally()
        tasks: Tally[tuple[str, str]] = Tally()
        try:
            found = [self._connect.status(name) for name in self._connect.names()]
        except HeadraceError:
            return  # the log is not read yet
        for status in found:
            connectors[status.type, status.connector.state] += 1
            for task in status.tasks:
                tasks[status.type, task.state] += 1
        yield _gauge("connectors", "Connectors by type and state.", ("type", "state"), connectors)
        yield _gauge("tasks", "Tasks by type and state.", ("type", "state"), tasks)

    def _of_the_worker(self) -> Iterator[Metric]:
        now = self._connect.worker.statistics()
        copies = {(kind, phase.value): count for (kind, phase), count in now.copies.items()}
        yield _gauge("units", "Copies on this worker, not gone yet.", ("kind", "phase"), copies)
        counts = {
            "units_launched": ("Copies that were started.", now.launched),
            "units_forced": ("Copies that had to be killed.", now.forced),
            "units_failed": ("Copies that ended in Error.", now.failed),
            "units_restarted": ("Restarts by the worker itself.", now.restarted),
            "passes": ("Passes over all units.", now.passes),
        }
        for name, (says, count) in counts.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", says, value=count)
        up = 1 if now.state == "running" and self._connect.worker.trouble() is None else 0
        figures = {
            "up": ("Whether the worker can do its work.", up),
            "log_position": ("Position in the log.", now.log_position),
            "log_unwritten": ("States that wait to be written.", now.unwritten),
        }
        for name, (says, figure) in figures.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", says, value=figure)

    def _of_the_tasks(self) -> Iterator[Metric]:
        """What the tasks on this worker have moved, as the data plane tells."""
        labels = ("connector", "task")
        # What has ended is told of by the worker that runs its successor.
        units = [unit for unit in self._connect.units() if unit.pid_alive]
        found = [(_labels(unit), unit.figures) for unit in units if unit.figures is not None]
        for name, says in _MOVED.items():
            family = CounterMetricFamily(f"{_PREFIX}_task_{name}", says, labels=labels)
            for of, figures in found:
                family.add_metric(of, getattr(figures, name))
            yield family
        lags = GaugeMetricFamily(f"{_PREFIX}_task_lag", _LAG, labels=labels)
        for of, figures in found:
            if figures.lag is not None:
                lags.add_metric(of, figures.lag)
        yield lags
        waits = GaugeMetricFamily(f"{_PREFIX}_task_waits", _WAITS, labels=labels)
        for unit in units:
            if unit.task is not None:
                waits.add_metric(_labels(unit), bool(unit.waits_for))
        yield waits

    def _of_the_errors(self) -> Iterator[Metric]:
        """What has failed in the tasks on this worker, also in one that has ended by that."""
        labels = ("connector", "task")
        units = [one for one in self._connect.units() if one.pid_alive or self._has_failed(one)]
        newest = {_labels(one): one for one in sorted(units, key=lambda one: one.generation)}
        found = [(of, unit.errors) for of, unit in newest.items() if unit.errors is not None]
        for name, says in _ERRORS.items():
            known = name.removeprefix("total-").replace("-", "_")
            family = CounterMetricFamily(f"{_PREFIX}_task_{known}", says, labels=labels)
            for of, errors in found:
                family.add_metric(of, errors.get(name, 0))
            yield family
        says = "When a record failed for good last, in seconds since 1970."
        name = f"{_PREFIX}_task_last_error_timestamp_seconds"
        times = GaugeMetricFamily(name, says, labels=labels)
        for of, errors in found:
            if at := errors.get(_LAST_ERROR):
                times.add_metric(of, at / 1000)
        yield times

    def _has_failed(self, unit: UnitReport) -> bool:
        """Tell whether a copy that is gone is the last word on a task of this worker."""
        worker = self._connect.worker
        wanted = worker.view.connector(unit.connector) is not None
        here = worker.worker_of(unit.connector, unit.task) == worker.name
        return unit.phase == "ERROR" and wanted and here


def _labels(unit: UnitReport) -> tuple[str, str]:
    return unit.connector, str(unit.task)


def _gauge(
    name: str, says: str, labels: tuple[str, str], counts: dict[tuple[str, str], int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", says, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family
