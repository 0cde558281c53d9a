"""The process that a :class:`FunctionProcess` starts: it reads batches and calls the function.

Run as ``python -m headrace.spark.batches.function_worker CHANNEL``.
"""

from __future__ import annotations

import os
import queue
import sys
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError, UserCodeError
from headrace.runtime.batches.cutting import CommittedBatch
from headrace.runtime.batches.reading import batch_records, read_cut
from headrace.runtime.user_code import describe_failure
from headrace.spark.batches.failures import failed_call
from headrace.spark.statistics import unpickle_plan
from headrace.topology import BatchToken, ForEachBatch
from headrace.watched import end_process, watched_thread

if TYPE_CHECKING:
    from headrace.runtime.job_plan import JobConnection


def run(job: JobConnection, sink: ForEachBatch, cut: CommittedBatch) -> None:
    """Read a batch and call the function with it, unless no record of it counts.

    Raises
    ------
    UserCodeError
        The function raised.
    HeadraceError
        The records could not be read.
    """
    messages = list(read_cut(job.reader(sink.topic), cut))
    if not messages:
        return
    token = BatchToken(job.plan.job, cut.batch)
    try:
        sink.function(batch_records(sink, messages), token)
    except Exception as error:
        raise failed_call(sink, cut.batch, error, sink.function) from error


def serve(channel: Connection) -> None:
    """Answer requests; the process ends with the other side, even in the middle of a call."""
    operator = channel.recv_bytes().decode()
    plan = unpickle_plan(channel.recv_bytes())
    sink = plan.topology.operator(operator)
    assert isinstance(sink, ForEachBatch)
    job = plan.connect()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listen = partial(_listen, channel, requests)
    watched_thread(listen, name="headrace-requests", on_failure=end_process).start()
    while True:
        cut = msgspec.json.decode(requests.get(), type=CommittedBatch)
        channel.send_bytes(_answer(job, sink, cut))


def _answer(job: JobConnection, sink: ForEachBatch, cut: CommittedBatch) -> bytes:
    try:
        run(job, sink, cut)
    except HeadraceError as error:
        return describe_failure(error)
    except Exception as error:  # noqa: BLE001 - a serde of the user's raises what it likes
        return describe_failure(UserCodeError(f"batch {cut.batch} cannot be read: {error!r}"))
    return b""


def _listen(channel: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            requests.put(channel.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
