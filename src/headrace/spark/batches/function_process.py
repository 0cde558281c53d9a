"""The process in which a function of ``for_each_batch`` runs: it may hang, leak or die there.

It takes no slot of Spark's, so a function that hangs holds no task up; and it can be killed, so a
function that hangs does not keep a job from stopping.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import UserCodeError
from headrace.runtime.user_code.failures import raise_failure
from headrace.spark.family import MARK, family_mark

if TYPE_CHECKING:
    from headrace.runtime.batches.cutting import Cut
    from headrace.spark.plans import PlanHandle

__all__ = ["FunctionProcess"]

_END_SECONDS = 2.0


class FunctionProcess:
    """Calls a function of the topology in a process that lives from batch to batch.

    Parameters
    ----------
    job, operator
        Names of the job, and of the operator that has the function.
    handle
        The job's plan.
    """

    def __init__(self, job: str, operator: str, handle: PlanHandle) -> None:
        self._job = job
        self._operator = operator
        self._handle = handle
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, cut: Cut) -> None:
        """Call the function with the records of a batch.

        Raises
        ------
        UserCodeError
            The function raised, or its process ended.
        HeadraceError
            The records could not be read.
        """
        channel = self._ready()
        try:
            channel.send_bytes(msgspec.json.encode(cut))
            failure = channel.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        if failure:
            raise_failure(failure)

    def interrupt(self) -> None:
        """Kill the process, from another thread: the call fails."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process."""
        self.interrupt()
        self._let_go()

    def _ready(self) -> Connection:
        with self._lock:
            if self._closed:
                raise UserCodeError(f"for_each_batch '{self._operator}' was stopped")
            if self._channel is None:
                self._process, self._channel = self._begun()
            return self._channel

    def _begun(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.spark.batches.function_worker", str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    MARK: family_mark(),
                },
                # Ctrl-C in a terminal is for the job; this process ends with the channel.
                start_new_session=True,
            )
        channel = Connection(ours.detach())
        channel.send_bytes(self._operator.encode())
        channel.send_bytes(self._handle.payload)
        return process, channel

    def _died(self) -> UserCodeError:
        process = self._process
        code = None if process is None else _ended(process)
        self._let_go()
        return UserCodeError(
            f"the process of for_each_batch '{self._operator}' of job '{self._job}' ended with"
            f" status {code} in the middle of a batch",
            hint="the batch is handed over again; a status below 0 is a signal: -9 is often the"
            " system that is out of memory",
        )

    def _let_go(self) -> None:
        with self._lock:
            process, channel = self._process, self._channel
            self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is not None:
            _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
