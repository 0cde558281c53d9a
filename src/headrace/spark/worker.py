"""What a Python worker of Spark keeps between tasks: code and connections, but no state."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from headrace.client import Client, ClientSettings
from headrace.errors import BrokerError
from headrace.failpoints import failpoint
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.messages import decode_messages
from headrace.protocol.properties import encode_properties
from headrace.runtime.commit.transactions import Attempt
from headrace.runtime.state.home import StateTopicReader
from headrace.runtime.state.local import LocalCopies, StateTopic
from headrace.runtime.task import RuntimeContext, Task
from headrace.runtime.time_limit import patience, time_limit, traced
from headrace.runtime.user_code import Finder, Original
from headrace.spark.statistics import PlanHandle, unpickle_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.chunk import Marks
    from headrace.runtime.control import Control
    from headrace.runtime.job_plan import JobConnection, JobPlan


CopiesOf = Callable[[Path, StateTopic], LocalCopies]
"""Returns the copies of a job's state below a folder, which are restored from a topic."""

_connections: dict[tuple[int, str], JobConnection] = {}
_connecting = threading.Lock()
#: A worker of Connect runs tasks of about a hundred jobs in turn.
_MOST_CONNECTIONS = 128
#: Jobs of one cluster and account share their sockets.
_clients: dict[tuple[int, str, ClientSettings], Client] = {}
_modules_frozen = 0

#: How many new objects trigger the garbage collector.  A batch makes some for every record, and
#: with Python's default a fifth of its time would go into finding no cycles.
_COLLECT_AFTER = 500_000


def connection(handle: PlanHandle) -> JobConnection:
    """Return this process's connection for a job; it keeps one for each of its jobs."""
    key = (os.getpid(), handle.digest)
    found = _connections.get(key)
    if found is not None:
        return found
    # An engine plans the batches of many jobs, each in a thread of its own.
    with _connecting:
        if key not in _connections:
            _connections[key] = _connect(handle)
        return _connections[key]


def _connect(handle: PlanHandle) -> JobConnection:
    plan = unpickle_plan(handle.payload)
    _forget(plan.job)
    while len(_connections) >= _MOST_CONNECTIONS:
        _connections.pop(next(iter(_connections))).instances.close()
    if TaskContext.get() is not None:
        # Not in a driver that plans its own batches: there, proxies of Java's objects form cycles,
        # and Java keeps the objects until the collector finds the proxies.
        gc.set_threshold(_COLLECT_AFTER, 10, 10)
    return plan.connect(_client(plan))


def _client(plan: JobPlan) -> Client:
    key = (os.getpid(), plan.namesrv, plan.client_settings)
    if key not in _clients:
        _clients[key] = Client(plan.namesrv, plan.client_settings)
    return _clients[key]


def _forget(job: str) -> None:
    """Drop connections of a job that now comes with another plan, and of other processes."""
    for key, connection in list(_connections.items()):
        if key[0] != os.getpid():
            del _connections[key]
        elif connection.plan.job == job:
            _connections.pop(key).instances.close()


def end_of_task() -> None:
    """Exclude loaded modules from the garbage collection that Spark runs after every task.

    With pyarrow and Spark's own modules loaded, that collection takes 15 to 50 ms; it ignores
    frozen objects.  Garbage must not be frozen, so this collects first, and only after imports.
    """
    global _modules_frozen
    if len(sys.modules) != _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)


@contextmanager
def limited(job: JobConnection, control: Control, partition: int) -> Iterator[None]:
    """Limit a task to the time that a batch may take.

    Raises
    ------
    BatchTimeoutError
        The task took longer.
    """
    limit = job.plan.settings.batch_timeout.total_seconds()
    # The traceback comes later than the alarm, and before the driver ends the process.
    trace_after = (limit + patience(limit)) / 2
    with (
        traced(job.plan.state_root, trace_after),
        time_limit(limit, control.batch, partition),
    ):
        yield


def make_task(
    job: JobConnection,
    control: Control,
    stage: int,
    partition: int,
    finder: Finder,
    copies: CopiesOf = LocalCopies,
) -> Task:
    """Return one attempt of one task, ready to run; ``copies`` gives those of its state."""
    plan = job.plan
    task_context = TaskContext.get()
    attempt = Attempt(
        job=control.job,
        epoch=control.epoch,
        batch=control.batch,
        stage=stage,
        partition=partition,
        number=0 if task_context is None else task_context.taskAttemptId(),
    )
    failpoint("task.begun")
    tags_of = None if plan.embedded else plan.job
    topic = StateTopicReader(job.consumer, plan.state_topics, control.queues, tags_of)
    context = RuntimeContext(
        control=control,
        partition=partition,
        finder=finder,
        copies=copies(plan.state_root, topic),
        plan=plan.stages,
        state_topics=plan.state_topics,
        own_store=plan.own_store(topic, control.batch - 1),
        attempt=attempt.number,
        instances=job.instances,
    )
    return Task(context, attempt, job.transactions.writer(attempt))


class RemoteFinder:
    """Finds the message of a mark by asking its broker.

    Parameters
    ----------
    client
        A client of the cluster.
    marks
        The marks of the batch.
    """

    def __init__(self, client: Client, marks: Marks) -> None:
        self._client = client
        self._marks = marks

    def find(self, mark: int) -> Original | None:
        """Return the message; None if the broker has none there, or none caused the record."""
        place = self._marks.place(mark)
        if place is None:
            return None
        offset = {"offset": str(place.position)}
        try:
            answer = self._client.ask_broker(
                place.broker, lambda: Command(RequestCode.VIEW_MESSAGE_BY_ID, offset)
            )
            message = decode_messages(answer.payload)[0]
        except (BrokerError, IndexError):
            return None
        return Original(
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.body,
            encode_properties(message.properties),
            message.born,
            place.broker,
        )
