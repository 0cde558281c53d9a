"""The client proper: connections, routes, and requests that are tried again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from headrace import errors
from headrace.backoff import Backoff, jitter
from headrace.client._connection import Session
from headrace.client.settings import ClientSettings, parse_addresses
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command, request_name
from headrace.protocol.replication import PRIMARY
from headrace.protocol.routes import (
    LOGICAL_BROKER,
    ClusterInfo,
    MessageQueue as MessageQueue,  # noqa: PLC0414
    TopicRoute,
    loads,
)

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    settings: ClientSettings,
    *,
    patience: Callable[[], float],
    on_retry: Callable[[errors.HeadraceError], None],
    final: tuple[type[errors.HeadraceError], ...] = (),
) -> T:
    """Await ``attempt()`` until it succeeds, fails for good, or ``patience()`` seconds are over.

    ``patience`` is called after each failure: an address that has answered once deserves more.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    failures = 0
    while True:
        try:
            return await attempt()
        except errors.HeadraceError as error:
            left = started + patience() - loop.time()
            if not error.retriable or isinstance(error, final) or left <= 0:
                raise
            on_retry(error)
        failures += 1
        first, longest = settings.retry_backoff, settings.retry_backoff_limit
        backoff = Backoff(first.total_seconds(), longest.total_seconds())
        await asyncio.sleep(min(backoff.after(failures, jitter()), left))


T = TypeVar("T")
ServerHandler = Callable[[Command], Command | None]
#: Seconds after which the next name server is asked.
_NEXT_NAME_SERVER = 2.0


class Openable:
    """The base of everything that talks to a cluster: ``async with`` opens and closes it.

    An object that has nothing to open, as it uses its client's connections, also works without.
    """

    async def start(self) -> None:
        """Begin what goes on in the background."""

    async def close(self) -> None:
        """End what goes on in the background."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Counts of what a client has done so far."""

    #: Open connections.
    connections: int
    #: Requests sent, each try counted.
    requests: int
    #: Requests that failed in a way that was worth another try.
    retries: int
    #: Requests that wait for their answer now.
    pending: int
    bytes_sent: int
    bytes_received: int


class AsyncClient(Openable):
    """Connections to a cluster, shared by the producers, consumers and admins made with it.

    It may be handed to another process by a fork: the child opens connections of its own.

    Parameters
    ----------
    namesrv
        Addresses of the name servers, ``host:port`` separated by ``;``.
    settings
        Time limits and sizes.

    Examples
    --------
    >>> from headrace.client import AsyncClient
    >>> async def topics() -> list[str]:
    ...     async with AsyncClient("127.0.0.1:9876") as client:
    ...         return await AsyncAdmin(client).topics()
    """

    def __init__(self, namesrv: str, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self.name_servers = parse_addresses(namesrv)
        self._handlers: dict[int, list[ServerHandler]] = {}
        #: Topics that are known to exist.
        self._expected: set[str] = set()
        self._retries = 0
        self._reached = False
        self._pid = os.getpid()
        self._session = Session(self.settings, self._serve)

    def sibling(self) -> AsyncClient:
        """Make a client of the same cluster that has connections of its own."""
        return AsyncClient(";".join(self.name_servers), self.settings)

    async def close(self) -> None:
        """Close all connections; requests that wait for an answer fail."""
        await self._own_session().close()

    def statistics(self) -> ClientStatistics:
        """Count what this client has done in this process."""
        session = self._session
        return ClientStatistics(
            connections=session.open_connections,
            requests=session.requests,
            retries=self._retries,
            pending=session.pending,
            bytes_sent=session.bytes_sent,
            bytes_received=session.bytes_received,
        )

    def on_request(self, code: int, handler: ServerHandler) -> Callable[[], None]:
        """Register a handler for the requests with this code that servers send.

        The first handler that has an answer sends it.  The returned function unregisters this one.
        """
        handlers = self._handlers.setdefault(code, [])
        handlers.append(handler)
        return lambda: handlers.remove(handler)

    # One try

    async def invoke(
        self,
        address: str,
        command: Command,
        *,
        expect: Collection[int] = (0,),
        timeout: timedelta | None = None,
    ) -> Command:
        """Send one request to an address, once, and return its answer.

        Raises
        ------
        BrokerError
            If the answer has a code other than those of ``expect``: the class follows the code.
        ConnectionFailedError
            If there is no connection, or it was lost before the answer came.
        RequestTimeoutError
            If no answer came in time.
        """
        session = self._own_session()
        limit = (self.settings.request_timeout if timeout is None else timeout).total_seconds()
        answer = await session.request(address, command, limit)
        self._reached = True
        if answer.code not in expect:
            what = f"{address} refused {request_name(command.code)}: "
            what += f"{(answer.remark or 'no reason given').strip()} (code {answer.code})"
            if PRIMARY in answer.ext:
                raise errors.NotPrimaryError(what, primary=answer.ext[PRIMARY], number=answer.code)
            hint = _hint(answer.code, signed=self.settings.access_key is not None)
            raise errors.broker_error(answer.code, what, hint=hint)
        return answer

    async def send_oneway(self, address: str, command: Command) -> None:
        """Send a request that is not answered."""
        await self._own_session().send_oneway(address, command)

    # With retries

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        final: tuple[type[errors.HeadraceError], ...] = (),
    ) -> T:
        """Await ``attempt()`` again while its failure may pass, up to ``retry_timeout``.

        Errors of a class in ``final`` are raised at once, whatever they say of themselves.
        """
        return await retrying(
            attempt,
            self.settings,
            patience=self._patience,
            on_retry=self._count_retry,
            final=final,
        )

    async def ask_name_server(
        self, make: Callable[[], Command], *, expect: Collection[int] = (0,)
    ) -> Command:
        """Send a request to the first name server that answers."""

        async def attempt() -> Command:
            failure: errors.HeadraceError | None = None
            addresses = self._own_session().by_preference(self.name_servers)
            for address in addresses:
                # All name servers know the same, so a machine that is gone is not waited for.
                limit = None if address == addresses[-1] else _NEXT_NAME_SERVER
                try:
                    async with asyncio.timeout(limit):
                        return await self.invoke(address, make(), expect=expect)
                except errors.NotPrimaryError as error:
                    # A follower hears of new topics from its primary, which may know this one.
                    failure = failure or error
                except (errors.ConnectionFailedError, errors.RequestTimeoutError) as error:
                    self._own_session().avoid(address)
                    failure = failure or error
                except TimeoutError:
                    self._own_session().avoid(address)
            assert failure is not None
            raise failure

        return await self.retry(attempt)

    async def ask_broker(
        self,
        broker: str,
        make: Callable[[], Command],
        *,
        expect: Collection[int] = (0,),
        timeout: timedelta | None = None,
        final: tuple[type[errors.HeadraceError], ...] = (),
    ) -> Command:
        """Send a request to a broker, by its name, and retry while that may help.

        ``make`` builds the command for each try.
        """
        return await self.retry(
            lambda: self.ask_broker_once(broker, make(), expect=expect, timeout=timeout),
            final=final,
        )

    async def ask_broker_once(
        self,
        broker: str,
        command: Command,
        *,
        expect: Collection[int] = (0,),
        timeout: timedelta | None = None,
    ) -> Command:
        """Send a request to a broker, by its name, once."""
        address = await self.broker_address(broker)
        try:
            return await self.invoke(address, command, expect=expect, timeout=timeout)
        except (errors.ConnectionFailedError, errors.NotPrimaryError):
            self._own_session().stale.add(broker)
            raise

    async def ask_queue(
        self,
        queue: MessageQueue,
        make: Callable[[], Command],
        *,
        expect: Collection[int] = (0,),
        timeout: timedelta | None = None,
    ) -> Command:
        """Send a request about a queue to its broker, and retry while that may help."""
        return await self.retry(
            lambda: self.ask_queue_once(queue, make(), expect=expect, timeout=timeout)
        )

    async def ask_queue_once(
        self,
        queue: MessageQueue,
        command: Command,
        *,
        expect: Collection[int] = (0,),
        timeout: timedelta | None = None,
    ) -> Command:
        """Send a request about a queue to the broker that holds it, once."""
        broker = await self.broker_of(queue)
        try:
            return await self.ask_broker_once(broker, command, expect=expect, timeout=timeout)
        except errors.BrokerError as error:
            if error.number == ResponseCode.NOT_LEADER_FOR_QUEUE:
                self.forget_route(queue.topic)
            raise

    # Where things are

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return which brokers hold a topic, from memory while that is fresh enough.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        ConnectionFailedError
            If the topic is an expected one, and no broker has shown it for too long.
        """
        routes = self._own_session().routes
        now = asyncio.get_running_loop().time()
        known = routes.get(topic)
        if known is not None and not refresh:
            route, asked = known
            if now - asked < self.settings.route_refresh.total_seconds():
                return route
        route = await self.retry(lambda: self._fetch_route(topic))
        routes[topic] = route, now
        return route

    def expect(self, topics: Iterable[str]) -> None:
        """Assume that topics exist: brokers that do not show them are away, and are waited for.

        A name server forgets a broker that ends or is cut off, and its topics with it.
        """
        self._expected.update(topics)

    def forget_route(self, topic: str) -> None:
        """Forget the route of a topic, so that the next use asks for it anew."""
        self._own_session().routes.pop(topic, None)

    async def queues(
        self, topic: str, *, for_: Literal["read", "write"] = "read", refresh: bool = False
    ) -> list[MessageQueue]:
        """List the queues of a topic that can be read or written, in order."""
        found = _queues_of(await self.route(topic, refresh=refresh), topic, for_)
        if found or topic not in self._expected:
            return found
        return await self.retry(lambda: self._expected_queues(topic, for_))

    async def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds a queue; a static topic's route tells it.

        Raises
        ------
        NotFoundError
            If no broker holds the queue of a static topic now.
        """
        if queue.broker != LOGICAL_BROKER:
            return queue.broker
        holder = (await self.route(queue.topic)).holders().get(queue.queue_id)
        if holder is None:
            raise errors.NotFoundError(
                f"no broker holds queue {queue.queue_id} of the static topic {queue.topic!r} now",
                hint="look whether its brokers are registered: `mqadmin clusterList`",
            )
        return holder

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters that the name server knows."""
        answer = await self.ask_name_server(lambda: Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        info = loads(answer.payload, ClusterInfo)
        self._own_session().learn(info.broker_addr_table.values())
        return info

    async def brokers(self) -> dict[str, str]:
        """Return the address of every broker's master, by the broker's name."""
        info = await self.cluster_info()
        return {
            name: data.master
            for name, data in sorted(info.broker_addr_table.items())
            if data.master is not None
        }

    async def broker_address(self, broker: str) -> str:
        """Return the address of a broker's master.

        Raises
        ------
        NotFoundError
            If no broker of this name was ever heard of.
        ConnectionFailedError
            The same, but :meth:`expect` says that there must be brokers.
        """
        session = self._own_session()
        known = session.addresses.get(broker)
        if known is not None and broker not in session.stale:
            return known
        found = (await self.brokers()).get(broker, known)
        if found is None and self._expected:
            raise self._away(f"broker {broker!r} is away")
        if found is None:
            raise errors.NotFoundError(
                f"the name server {self.name_servers[0]} knows no broker {broker!r}",
                hint="`headrace topic list` shows what there is",
            )
        session.stale.discard(broker)
        return found

    # Inside

    async def is_headrace(self, broker: str | None = None) -> bool:
        """Return whether a broker, by default the cluster, commits whole batches as one unit.

        A unit is on one broker: no cluster of several brokers, of whatever kind, commits one.
        """
        there = (await self.cluster_info()).broker_addr_table if broker is None else [broker]
        return len(there) == 1 and await self._has_capabilities(*there)

    async def _has_capabilities(self, broker: str) -> bool:
        try:
            await self.ask_broker(broker, lambda: Command(RequestCode.HEADRACE_CAPABILITIES))
        except errors.RequestNotSupportedError:
            return False
        return True

    async def _expected_queues(
        self, topic: str, for_: Literal["read", "write"]
    ) -> list[MessageQueue]:
        found = _queues_of(await self.route(topic, refresh=True), topic, for_)
        if not found:
            raise self._away(f"the broker that holds {topic} is away")
        return found

    def _away(self, what: str) -> errors.ConnectionFailedError:
        return errors.ConnectionFailedError(
            f"{what}: the name server {self.name_servers[0]} does not know it now",
            hint="start it, or mend its connection to the name server; do not make its topics anew"
            " on other brokers. `mqadmin clusterList` shows the brokers that are there",
        )

    async def _fetch_route(self, topic: str) -> TopicRoute:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            answer = await self.ask_name_server(
                lambda: Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            )
        except errors.TopicNotFoundError as error:
            if topic in self._expected:
                raise self._away(f"the broker that holds {topic} is away") from error
            raise errors.TopicNotFoundError(
                f"topic {topic!r} does not exist at {self.name_servers[0]}",
                hint=f"create it with `headrace topic create {topic}` "
                "or Admin.create_topic, or correct the name",
            ) from error
        route = loads(answer.payload, TopicRoute)
        self._own_session().learn(route.broker_datas)
        return route

    def _own_session(self) -> Session:
        if self._pid != os.getpid():
            self._session.abandon()
            self._session = Session(self.settings, self._serve)
            self._pid = os.getpid()
        return self._session

    def _patience(self) -> float:
        limit = self.settings.retry_timeout if self._reached else self.settings.connect_timeout
        return limit.total_seconds()

    def _count_retry(self, _: errors.HeadraceError) -> None:
        self._retries += 1

    def _serve(self, command: Command) -> Command | None:
        handlers = self._handlers.get(command.code)
        if handlers:
            replies = [handler(command) for handler in handlers]
            return next((reply for reply in replies if reply is not None), None)
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request type {command.code} not supported",
        )


def _queues_of(route: TopicRoute, topic: str, for_: Literal["read", "write"]) -> list[MessageQueue]:
    return list(route.readable_queues(topic) if for_ == "read" else route.writable_queues(topic))


def _hint(code: int, *, signed: bool) -> str | None:
    if code != ResponseCode.NO_PERMISSION:
        return None
    if signed:
        return "check access key and secret key, and what the account may do"
    return "if the cluster has access control, set access_key and secret_key"
