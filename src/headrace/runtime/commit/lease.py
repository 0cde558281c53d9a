"""The lease of a job's driver: a lock on its commit topic that says that one runs."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, StateError
from headrace.protocol.bodies import QueueRef, dumps, loads
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult
from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    from headrace.client import Client, MessageQueue

__all__ = ["Lease", "LeaseWait"]

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
    job, commit_topic
        The job, and its commit topic.
    owner
        Names this process, differently for each lease.
    renewal
        Seconds between two renewals.
    """

    def __init__(
        self,
        client: Client,
        job: str,
        commit_topic: str,
        owner: str,
        *,
        renewal: float = _RENEWAL,
    ) -> None:
        self._client = client
        self._job = job
        self._topic = commit_topic
        self._owner = owner
        self._renewal = renewal
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None
        #: Told of the error that has ended the keeper: the lease ends with it.
        self.on_failure: OnFailure = lambda _error: None

    def acquire(self) -> bool:
        """Lock the commit topic, or renew the lock; tell whether it is ours."""
        queue = self._queue()
        body = self._body(queue, self._owner)
        answer = self._client.ask_broker(
            queue.broker, partial(Command, RequestCode.LOCK_BATCH_MQ, {}, body)
        )
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
        """Give the lease back."""
        self._over.set()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None
        self.release_for(self._owner)

    def release_for(self, owner: str) -> None:
        """Give back the lease of an owner that cannot do so itself."""
        try:
            queue = self._queue()
            body = self._body(queue, owner)
            command = partial(Command, RequestCode.UNLOCK_BATCH_MQ, {}, body)
            self._client.ask_broker(queue.broker, command)
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
        return self._client.queues(self._topic, for_="write")[0]

    def _body(self, queue: MessageQueue, owner: str) -> bytes:
        ref = QueueRef(queue.topic, queue.broker, queue.queue_id)
        return dumps(LockRequest(consumer_group=self._job, client_id=owner, mq_set=[ref]))
