"""Registration with other name servers: they hear that this broker is there, and of its topics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING

from headrace.broker.replication.replicas import Role
from headrace.errors import HeadraceError, SettingsError, broker_error
from headrace.protocol import routes
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command, Credentials, FrameBuffer, encode, sign

if TYPE_CHECKING:
    from headrace.broker.replication.remote import PeerSecurity
    from headrace.broker.replication.replicas import Replication
    from headrace.broker.snapshots import BrokerTables


logger = logging.getLogger(__name__)

#: How long a name server may take for anything, seconds.
_PATIENCE = 3.0
#: Changes of topics are looked for so often, seconds.
_LOOK = 0.5
_READ = 64 * 1024


class Announcer:
    """Registers a broker with one name server, again and again.

    Parameters
    ----------
    tables, replication
        The broker's topics, and its part in replication.
    address
        ``host:port`` of the name server.

    Raises
    ------
    SettingsError
        When it is no address.
    """

    def __init__(self, tables: BrokerTables, replication: Replication, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            message = f"{address!r} is no address of a name server"
            raise SettingsError(message, hint="Write HOST:PORT.")
        self._tables = tables
        self._replication = replication
        self._address = address
        self._numbers = itertools.count(1)
        self._line: _Line | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register now, with every change of topics, and now and then."""
        self._task = self._replication.work.keep(f"broker-announcer {self._address}", self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        told: tuple[int, int, str] | None = None
        due = loop.time()
        while True:
            versions = (*self._versions(), self._broker_id())
            if self._replication.role is Role.FENCED:
                # Its name belongs to the broker that was promoted.
                told = versions
            elif versions != told or loop.time() >= due:
                if await self._register():
                    told = versions
                due = loop.time() + self._replication.settings.register_interval.total_seconds()
            # A name server that cannot be reached is tried again no more often than this.
            await asyncio.sleep(_LOOK)

    def _versions(self) -> tuple[int, int]:
        return self._tables.topics.version, self._tables.static_topics.version

    async def _register(self) -> bool:
        body = routes.dumps(routes.RegisterBroker(topic_config_serialize_wrapper=self._table()))
        more = {
            "haServerAddr": self._replication.address,
            "compressed": "false",
            "bodyCrc32": str(routes.body_checksum(body)),
        }
        try:
            await self._ask(RequestCode.REGISTER_BROKER, more, body)
        except (OSError, TimeoutError, HeadraceError) as error:
            logger.warning("name server %s did not take this broker: %s", self._address, error)
            return False
        return True

    def _broker_id(self) -> str:
        places = self._replication.addresses().items()
        return next((number for number, place in places if place == self._replication.address), "0")

    def _table(self) -> routes.TopicConfigTable:
        tables = self._tables
        topics, statics = self._versions()
        return routes.TopicConfigTable(
            topic_config_table={config.topic_name: config for config in tables.topics.configs()},
            # The start counts too: after it the versions begin anew.
            data_version=routes.DataVersion(timestamp=tables.started, counter=topics + statics),
            topic_queue_mapping_info_map=tables.static_topics.infos(),
            topic_queue_mapping_detail_map=tables.static_topics.details(),
            mapping_data_version=routes.DataVersion(timestamp=tables.started, counter=statics),
        )

    async def close(self) -> None:
        """Take leave of the name server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._line is None:
            return
        with contextlib.suppress(OSError, TimeoutError, HeadraceError):
            await self._ask(RequestCode.UNREGISTER_BROKER, {}, b"")
        self._hang_up()

    async def _ask(self, code: RequestCode, more: dict[str, str], body: bytes) -> None:
        settings = self._replication.settings
        ext = {
            "brokerName": settings.broker_name,
            "brokerAddr": self._replication.address,
            "clusterName": settings.cluster,
            "brokerId": self._broker_id(),
            **more,
        }
        command = Command(code, ext, body, opaque=next(self._numbers))
        try:
            async with asyncio.timeout(_PATIENCE):
                if self._line is None:
                    self._line = await _Line.open(self._address, settings.peers)
                answer = await self._line.ask(command)
        except BaseException:
            self._hang_up()
            raise
        if answer.code:
            raise broker_error(answer.code, answer.remark or "it gave no reason")

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Line:
    """One connection, one request at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        credentials: Credentials | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._credentials = credentials
        self._frames = FrameBuffer()

    @classmethod
    async def open(cls, address: str, security: PeerSecurity) -> _Line:
        host, _, port = address.rpartition(":")
        streams = await asyncio.open_connection(host, int(port), ssl=security.context())
        return cls(*streams, security.credentials)

    async def ask(self, command: Command) -> Command:
        if self._credentials is not None:
            sign(command, self._credentials)
        self._writer.writelines(encode(command))
        await self._writer.drain()
        while True:
            data = await self._reader.read(_READ)
            if not data:
                raise ConnectionError("the name server closed the connection")
            for answer in self._frames.feed(data):
                if answer.is_response and answer.opaque == command.opaque:
                    return answer

    def close(self) -> None:
        self._writer.close()
