"""Transaction messages, shown only if what the sender did beside them has succeeded."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.client.membership import new_client_id
from headrace.client.producer import AsyncProducer, SendResult
from headrace.errors import ConfigurationError, HeadraceError, NotFoundError
from headrace.protocol.codes import RequestCode, SysFlag
from headrace.protocol.frames import Command
from headrace.protocol.groups import Heartbeat, ProducerData
from headrace.protocol.messages import Message, StoredMessage, decode_messages
from headrace.protocol.properties import PGROUP, TRAN_MSG, decode_offset_id
from headrace.protocol.routes import MessageQueue, dumps
from headrace.user_lines import user_line
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient


logger = logging.getLogger(__name__)


class LocalTransactionState(enum.Enum):
    """The possible ends of the sender's own transaction."""

    COMMIT_MESSAGE = int(SysFlag.COMMITTED)
    ROLLBACK_MESSAGE = int(SysFlag.ROLLED_BACK)
    #: Not known now: the broker asks any producer of the group later.
    UNKNOWN = 0


_COMMIT = LocalTransactionState.COMMIT_MESSAGE
_ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
_UNKNOWN = LocalTransactionState.UNKNOWN

Local = Callable[
    ["Message", str], "LocalTransactionState | Awaitable[LocalTransactionState | None] | None"
]
"""A user's transaction, called with the message and the transaction's id; None means success."""

Check = Callable[["StoredMessage"], "LocalTransactionState | Awaitable[LocalTransactionState]"]
"""A function that tells how the transaction of a half message ended."""


class Transaction:
    """A half message: stored, but not shown."""

    def __init__(self, message: Message, sent: SendResult) -> None:
        self.message = message
        #: Place of the half message, in a topic of the broker's own.
        self.sent = sent
        #: What the broker is told at the end.
        self.state = _COMMIT

    @property
    def id(self) -> str:
        """Id of the transaction, which ``check`` finds again as the message's ``unique_key``."""
        return self.sent.message_id

    def commit(self) -> None:
        """Make the message visible to consumers."""
        self.state = _COMMIT

    def rollback(self) -> None:
        """Drop the message."""
        self.state = _ROLLBACK

    def leave_open(self) -> None:
        """Leave it to ``check``, which the broker calls later."""
        self.state = _UNKNOWN


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Counts of what a transaction producer has done so far."""

    #: Half messages sent.
    begun: int
    #: Transactions ended by this producer: by their sender or after a check.
    committed: int
    rolled_back: int
    #: How often a state was not known.
    unknown: int
    #: Half messages that brokers asked about.
    checks: int


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages that are shown only if a transaction beside them succeeds.

    The message goes to the broker first, as a half message that nobody sees.  Then your own
    transaction runs, and its end commits the message or rolls it back.  If the end does not arrive,
    the broker asks any producer of the group: ``check`` must find it from the message alone.

    Parameters
    ----------
    client
        A client of the cluster; the producer has a connection of its own.
    group
        Name of the producer group: its members answer for one another.
    check
        Returns how a half message's transaction ended; plain (called on a thread) or ``async``.

    Examples
    --------
    >>> async def order(client: AsyncClient, orders: set[str]) -> None:
    ...     def check(message: StoredMessage) -> LocalTransactionState:
    ...         done = message.unique_key in orders
    ...         return (
    ...             LocalTransactionState.COMMIT_MESSAGE
    ...             if done
    ...             else LocalTransactionState.ROLLBACK_MESSAGE
    ...         )
    ...
    ...     async with AsyncTransactionProducer(client, "orders", check) as producer:
    ...         async with producer.transaction(Message(topic="orders", body=b"1")) as half:
    ...             orders.add(half.id)
    """

    def __init__(self, client: AsyncClient, group: str, check: Check) -> None:
        # Brokers ask a producer on the connection that it sends its heartbeats on.
        super().__init__(client.sibling(), group)
        self._check = check
        self._body = dumps(
            Heartbeat(client_id=new_client_id(), producer_data_set=[ProducerData(group_name=group)])
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        #: The error that has ended the heartbeats: brokers would ask nobody of this producer.
        self._failure: BaseException | None = None
        self._ended = dict.fromkeys(LocalTransactionState, 0)
        self._begun = 0
        self._checks = 0

    def transaction_statistics(self) -> TransactionStatistics:
        """Return counts of transactions."""
        return TransactionStatistics(
            self._begun,
            self._ended[_COMMIT],
            self._ended[_ROLLBACK],
            self._ended[_UNKNOWN],
            self._checks,
        )

    async def start(self) -> None:
        """Announce this producer, so that brokers can ask it; ``begin`` does so, too."""
        if self._beating is None:
            self.client.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
            await self._beat()
            self._beating = watched_task(
                self._keep_alive(), name=f"producer-heartbeats {self.group}", on_failure=self._fail
            )
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    async def close(self) -> None:
        """Leave the group; brokers check open transactions with other members."""
        if self._beating is None:
            return
        for task in (self._beating, *self._tasks):
            task.cancel()
        await asyncio.gather(self._beating, *self._tasks, return_exceptions=True)
        await self.client.close()

    async def send_in_transaction(
        self, message: Message, local: Local, queue: MessageQueue | None = None
    ) -> Transaction:
        """Send a half message, call ``local(message, transaction_id)``, and end the transaction.

        Parameters
        ----------
        local
            Plain (called on a thread) or ``async``.  What it returns is the state; None commits.

        Raises
        ------
        Exception
            Whatever ``local`` raised.  It may have succeeded all the same, so ``check`` decides.
        """
        async with self.transaction(message, queue) as half:
            state = await _called(local, message, half.id)
            if state is not None and not isinstance(state, LocalTransactionState):
                raise TypeError(f"a local transaction returned {state!r}, no LocalTransactionState")
            half.state = state or _COMMIT
        return half

    @contextlib.asynccontextmanager
    async def transaction(
        self, message: Message, queue: MessageQueue | None = None
    ) -> AsyncGenerator[Transaction, None]:
        """Send a half message, and end its transaction with the block.

        The end of the block commits, unless it called ``rollback`` or ``leave_open``.  An exception
        proves nothing about what was done before it, so ``check`` decides then.
        """
        half = await self.begin(message, queue)
        try:
            yield half
        except BaseException:
            if half.state is _COMMIT:
                half.leave_open()
            raise
        finally:
            await self.end(half)

    async def begin(self, message: Message, queue: MessageQueue | None = None) -> Transaction:
        """Send a half message.

        Raises
        ------
        ConfigurationError
            If the message has a delay.
        """
        if message.is_delayed:
            raise ConfigurationError(
                f"a transaction message for topic {message.topic!r} has a delay",
                hint="it is shown when its transaction commits",
            )
        await self.start()
        half = {TRAN_MSG: "true", PGROUP: self.group}
        sent = await self._send_one(message, queue, half, flag=int(SysFlag.PREPARED))
        self._begun += 1
        return Transaction(message, sent)

    async def end(self, half: Transaction) -> None:
        """Tell the broker once how a transaction ended; a broker that misses this asks."""
        sent = half.sent
        _, position = decode_offset_id(sent.offset_id)
        fields = {
            "topic": half.message.topic,
            "msgId": sent.message_id,
            "transactionId": sent.transaction_id,
            "tranStateTableOffset": str(sent.offset),
            "commitLogOffset": str(position),
            "fromTransactionCheck": "false",
        }
        try:
            broker = await self.client.broker_of(sent.queue)
            await self._tell(broker, fields, half.state)
        except HeadraceError as error:
            logger.warning("the end of transaction %s did not arrive: %s", half.id, error)

    async def _tell(
        self, broker: str, fields: dict[str, str], state: LocalTransactionState
    ) -> None:
        ext = fields | {
            "producerGroup": self.group,
            "commitOrRollback": str(state.value),
            "bname": broker,
        }
        address = await self.client.broker_address(broker)
        await self.client.send_oneway(address, Command(RequestCode.END_TRANSACTION, ext))
        self._ended[state] += 1

    # What brokers ask

    def _asked(self, command: Command) -> None:
        task = asyncio.create_task(self._answer(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, command: Command) -> None:
        try:
            (message,) = decode_messages(command.payload)
            if message.properties.get(PGROUP) != self.group:
                return
            self._checks += 1
            state = await self._checked(message)
            names = ("tranStateTableOffset", "commitLogOffset", "transactionId")
            fields = {name: command.ext[name] for name in names if name in command.ext} | {
                "topic": message.topic,
                "msgId": message.unique_key or command.ext.get("msgId", ""),
                "fromTransactionCheck": "true",
            }
            await self._tell(await self._asking(command, message), fields, state)
        except HeadraceError as error:
            logger.warning("a check of producer group %r was not answered: %s", self.group, error)

    async def _checked(self, message: StoredMessage) -> LocalTransactionState:
        try:
            state = await _called(self._check, message)
        except Exception as error:
            line = user_line(error, self._check)
            logger.error(
                "checking transaction %s of group %r failed: %s: %s%s",
                message.unique_key, self.group, type(error).__name__, error,
                "" if line is None else f"\n  at {line}", exc_info=error,
            )  # fmt: skip
            return _UNKNOWN
        if isinstance(state, LocalTransactionState):
            return state
        logger.error("check of group %r returned %r, no LocalTransactionState", self.group, state)
        return _UNKNOWN

    async def _asking(self, command: Command, message: StoredMessage) -> str:
        """Return the name of the broker that asks."""
        brokers = await self.client.brokers()
        told = command.ext.get("bname")
        if told in brokers:
            return told
        host, port = message.store_host
        for name, address in brokers.items():
            if address == f"{host}:{port}":
                return name
        raise NotFoundError(f"no broker at {host}:{port}, which asks about a transaction")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self.client.settings.heartbeat_interval.total_seconds())
            try:
                await self._beat()
            except HeadraceError as error:
                logger.warning("producer group %r: heartbeat failed: %s", self.group, error)

    async def _beat(self) -> None:
        make = partial(Command, RequestCode.HEART_BEAT, {}, self._body)
        brokers = await self.client.brokers()
        await asyncio.gather(*(self.client.ask_broker(broker, make) for broker in brokers))


async def _called(function: Callable[..., object], *arguments: object) -> object:
    """Call a user's function: a plain one on a thread, as it may wait for a database."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    answer = await asyncio.to_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer
