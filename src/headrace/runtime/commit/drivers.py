"""Names of drivers: who opened an epoch, and whether that process is gone for certain."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self

from headrace.client import Admin, Client, MessageQueue
from headrace.errors import HeadraceError, StateError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult
from headrace.protocol.routes import dumps, loads
from headrace.topology.names import commit_topic
from headrace.watched import OnFailure, watched_thread

# The lease of a job's driver: a lock on its commit topic that says that one runs.

logger = logging.getLogger(__name__)

#: Brokers give a lock to others after 60 s without a word.
_RENEWAL = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWait:
    """What a driver waits for that is about to run a job."""

    #: Who has the lease, or had it last: the name of a driver; empty where nobody knows.
    driver: str
    since: datetime
    #: When the wait is over; None: when that driver ends, or its lease does.
    until: datetime | None


class Lease:
    """One process's claim to be the only one that changes a job's state.

    A driver holds it while it runs, but does not depend on it: epochs keep two drivers apart.
    Commands that rewrite state need it, so that they never take a job away from its driver.

    Parameters
    ----------
    client
        Connection to the cluster.
    job
        Name of the job; what is locked is its commit topic.
    owner
        Names this process, differently for each lease.
    renewal
        Seconds between two renewals.
    """

    def __init__(self, client: Client, job: str, owner: str, *, renewal: float = _RENEWAL) -> None:
        self._client = client
        self._job = job
        self._owner = owner
        self._renewal = renewal
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None
        #: Told of the error that has ended the keeper: the lease ends with it.
        self.on_failure: OnFailure = lambda _error: None

    def acquire(self) -> bool:
        """Lock the commit topic, or renew the lock, and return whether it is ours."""
        answer = self._ask(RequestCode.LOCK_BATCH_MQ, self._owner)
        return bool(loads(answer.payload, LockResult).granted)

    def renew(self) -> None:
        """Renew the lock; called in the background."""
        self.acquire()

    def require(self) -> None:
        """Lock the commit topic.

        Raises
        ------
        StateError
            A driver of the job runs, or ended without a word less than a minute ago.
        """
        if not self.acquire():
            raise StateError(
                f"a driver of job '{self._job}' is running: its state cannot be changed now",
                hint="stop the job first; if it was killed, wait a minute",
            )

    def keep(self) -> None:
        """Hold the lease in the background, as soon as it is free, until it is released."""
        if self._keeper is not None:
            return
        self._over.clear()
        self._keeper = watched_thread(
            self._renew, name="headrace-lease", on_failure=self.on_failure
        )
        self._keeper.start()

    def release(self) -> None:
        """Release the lease."""
        self._over.set()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None
        self.release_for(self._owner)

    def release_for(self, owner: str) -> None:
        """Release the lease of an owner that cannot do so itself."""
        try:
            self._ask(RequestCode.UNLOCK_BATCH_MQ, owner)
        except HeadraceError as error:
            logger.debug("the lease of job %s ends by itself: %s", self._job, error)

    def _renew(self) -> None:
        while True:
            try:
                self.renew()
            except HeadraceError as error:
                logger.debug("the lease of job %s was not renewed: %s", self._job, error)
            if self._over.wait(self._renewal):
                return

    def _queue(self) -> MessageQueue:
        return self._client.queues(commit_topic(self._job), for_="write")[0]

    def _ask(self, code: RequestCode, owner: str) -> Command:
        queue = self._queue()
        body = dumps(LockRequest(consumer_group=self._job, client_id=owner, mq_set=[queue]))
        return self._client.ask_broker(queue.broker, partial(Command, code, {}, body))


_FORM = re.compile(
    r"(?P<host>[^:/@]*):(?P<pid>\d+)@(?P<boot>[^/]*)/(?P<space>[^/]*)/(?P<start>\d*)/(?P<mark>\w+)"
)
_PROC = Path("/proc")
#: Places of a process's threads and of its start in its line of numbers, behind the name.
_THREADS, _START = 17, 19


#: Drivers of this process that have ended.
_ended: set[DriverName] = set()


@dataclass(frozen=True, slots=True)
class DriverName:
    """Names one driver in one process, and nothing else ever.

    Examples
    --------
    >>> name = DriverName.here()
    >>> DriverName.parse(str(name)) == name
    True
    >>> name.is_dead()
    False
    """

    host: str
    pid: int
    #: Changes when the machine starts anew; empty where the system does not tell.
    boot: str
    #: The spaces that process id and start time are of: containers have their own.
    space: str
    #: When the process started, as the system counts: process ids are used again.
    start: str
    #: Tells drivers in one process apart.
    mark: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}@{self.boot}/{self.space}/{self.start}/{self.mark}"

    @classmethod
    def here(cls) -> Self:
        """Make a name for a driver in this process."""
        pid = os.getpid()
        try:
            start = _start_of(pid) or ""
        except OSError:
            start = ""
        mark = uuid.uuid4().hex[:8]
        return cls(_host(), pid, boot=_boot(), space=_space(), start=start, mark=mark)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a name back; None where it is not one."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        host, pid, *others = found.groups()
        return cls(host, int(pid), *others)

    def end(self) -> None:
        """Note that this driver of this process tries nothing more, though its process lives on.

        >>> name = DriverName.here()
        >>> name.end()
        >>> DriverName.parse(str(name)).is_dead(), DriverName.here().is_dead()
        (True, False)
        """
        _ended.add(self)

    def is_dead(self) -> bool:
        """Return whether it is gone, by itself or with its process; True only where that is proven.

        Only the machine on which it ran can prove it, in the same container.
        """
        if self in _ended:
            return True
        if not self.boot or not self.space or not self.start:
            return False
        # Copies of a virtual machine have one boot in common, so its name is looked at too.
        if (self.host, self.boot, self.space) != (_host(), _boot(), _space()):
            return False
        try:
            return _start_of(self.pid) != self.start
        except OSError:
            return False


def _host() -> str:
    return re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _space() -> str:
    """Return the spaces of process ids and of clocks; empty where ``/proc`` shows another space."""
    try:
        if (_PROC / "self").readlink().name != str(os.getpid()):
            return ""
        spaces = [str((_PROC / "self/ns/pid").stat().st_ino)]
        with contextlib.suppress(FileNotFoundError):
            # A start time counts by the clock of the one who asks.
            spaces.append(str((_PROC / "self/ns/time").stat().st_ino))
    except OSError:
        return ""
    return "-".join(spaces)


def _start_of(pid: int) -> str | None:
    """Return when a process started; None where there is none, or only what is left of it.

    Raises
    ------
    OSError
        Nobody can tell: what another user runs may be hidden, or descriptors may be used up.
    """
    if not _exists(pid):
        return None
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if _exists(pid):
            raise
        return None
    state, *numbers = line.rpartition(")")[2].split()
    # Of a process whose first thread has ended the others may go on.
    is_left = state in "ZX" and int(numbers[_THREADS - 1]) <= 1
    return None if is_left else numbers[_START - 1]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# What a driver finds of the one before it on the embedded broker: a lease that nobody holds.


def free_from_the_dead(client: Client, lease: Lease, topic: str) -> bool:
    """Release the lease of a driver that is proven to be dead, and return whether there was one.

    Otherwise it would last for up to a minute, and another machine might get it when it ends.
    """
    for job in Admin(client).jobs():
        if job.commit_topic == topic:
            holder = DriverName.parse(job.holder)
            if holder is not None and holder.is_dead():
                lease.release_for(job.holder)
                return True
    return False
