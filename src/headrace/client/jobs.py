"""Transactions of jobs on an embedded broker: open, plan, stage, commit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace import errors
from headrace.client.client import AsyncClient, Openable
from headrace.client.pulling import ensure_group
from headrace.protocol import transactions
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Buffer, Command

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

#: Most bytes of a body that an embedded broker reads (its limit max_json_body) and stores.
_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StageTarget:
    """The attempt of a task that stages; a commit names it to make its messages visible.

    Its fields are named as those of the request.
    """

    job: str
    epoch: int
    batch: int
    #: Stage of the topology, 0 for the source stage.
    stage: int
    #: Input split (stage 0) or partition of the job.
    partition: int
    #: Unique number of the attempt.
    attempt: int


class AsyncJobs(Openable):
    """Speaks the commit protocol with the broker that owns a job's commit topic.

    Every request may be repeated without harm, and is, until it is answered or
    ``ClientSettings.retry_timeout`` is over.

    Parameters
    ----------
    client
        The connection to the cluster.
    commit_topic
        The job's commit topic; it must exist.
    """

    def __init__(self, client: AsyncClient, commit_topic: str) -> None:
        self.client = client
        self.commit_topic = commit_topic
        self._groups: set[str] = set()

    async def open(self, request: transactions.OpenRequest) -> transactions.OpenAnswer:
        """Begin a new epoch: what older epochs still try is refused from here on.

        A repeated request may open a second epoch; the answer names the one that counts.

        Raises
        ------
        RequestNotSupportedError
            If the broker is not an embedded one.
        """
        body = msgspec.json.encode(request)
        return await self._ask(RequestCode.OPEN_JOB, body, transactions.OpenAnswer)

    async def plan(self, request: transactions.PlanRequest) -> transactions.PlanAnswer:
        """Return where the job stands and how far its next batch may read."""
        body, wait = msgspec.json.encode(request), timedelta(milliseconds=request.wait)
        return await self._ask(RequestCode.PLAN_BATCH, body, transactions.PlanAnswer, wait=wait)

    async def stage(self, target: StageTarget, chunk: int, body: Buffer) -> None:
        """Stage messages that stay invisible until a commit names them.

        Parameters
        ----------
        chunk
            Number of this piece of the attempt's messages, from 0; it makes a repeat harmless.
        body
            Sections as ``protocol.transactions.encode_sections`` makes them.

        Raises
        ------
        FencedError
            If a newer driver has taken over the job.
        """
        ext = {name: str(value) for name, value in asdict(target).items()} | {"chunk": str(chunk)}
        await self._send(lambda: Command(RequestCode.STAGE, ext, body))

    async def commit(self, request: transactions.CommitRequest) -> transactions.CommitAnswer:
        """Make a batch visible, all of it or nothing.

        Raises
        ------
        FencedError
            If a newer driver has taken over the job.
        PredecessorMismatchError
            If the batch does not build on the last committed one.
        StagedPartMissingError
            If the broker does not hold all that the commit names: process the batch anew.
        InputMissingError
            If the broker does not hold what the batch has read: plan it anew.
        MessageTooLargeError
            If the request is larger than an embedded broker takes by default.
        """
        if request.group not in self._groups:
            await ensure_group(self.client, request.group, [await self._broker()])
            self._groups.add(request.group)
        body = msgspec.json.encode(request)
        transactions.check_commit(request.record, len(body), _MOST_BYTES)
        return await self._ask(
            RequestCode.COMMIT_BATCH,
            body,
            transactions.CommitAnswer,
            final=(errors.StagedPartMissingError, errors.InputMissingError),
        )

    async def _ask(
        self,
        code: RequestCode,
        body: bytes,
        kind: type[T],
        *,
        wait: timedelta = timedelta(0),
        final: tuple[type[errors.HeadraceError], ...] = (),
    ) -> T:
        answer = await self._send(lambda: Command(code, {}, body), wait=wait, final=final)
        try:
            return msgspec.json.decode(answer.payload, type=kind)
        except msgspec.MsgspecError as error:
            raise errors.ProtocolError(
                f"the answer to {code.name} is no {kind.__name__}: {error}"
            ) from error

    async def _send(
        self,
        make: Callable[[], Command],
        *,
        wait: timedelta = timedelta(0),
        final: tuple[type[errors.HeadraceError], ...] = (),
    ) -> Command:
        broker = await self._broker()
        timeout = self.client.settings.request_timeout + wait
        try:
            return await self.client.ask_broker(broker, make, timeout=timeout, final=final)
        except errors.RequestNotSupportedError as error:
            raise errors.RequestNotSupportedError(
                f"broker {broker!r} does not know the requests that commit a batch as one unit",
                hint="only the broker of `headrace broker` does; on Apache RocketMQ a StreamJob "
                "commits by its journal topic, and does so by itself",
            ) from error

    async def _broker(self) -> str:
        queues = await self.client.queues(self.commit_topic, for_="write")
        if not queues:
            raise errors.TopicNotFoundError(
                f"commit topic {self.commit_topic!r} has no queue to write"
            )
        return queues[0].broker
