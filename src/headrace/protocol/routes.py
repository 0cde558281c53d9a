"""Where topics live: routes, topic settings and clusters, as the protocol's JSON bodies."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import field

from headrace.errors import ProtocolError
from headrace.protocol.bodies import JsonBody, QueueRef, loads
from headrace.protocol.codes import Perm

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


#: Name that stands for the broker of a static topic's queue, wherever that is held now.
LOGICAL_BROKER = "__syslo__global__"
_MASTER = "0"


class BrokerData(JsonBody):
    """A broker and its addresses."""

    cluster: str = ""
    broker_name: str = ""
    #: ``host:port`` by broker id; "0" is the master, the only one that takes messages.
    broker_addrs: dict[str, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def master(self) -> str | None:
        """Address of the broker that takes messages, None when there is none."""
        return self.broker_addrs.get(_MASTER)

    @property
    def readable(self) -> str | None:
        """Address to read from: the master's, or that of the replica with the lowest id."""
        ids = sorted(self.broker_addrs, key=lambda text: (len(text), text))
        return self.broker_addrs[ids[0]] if ids else None


class QueueData(JsonBody):
    """How many queues of a topic a broker holds, and what it allows."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = Perm.READ | Perm.WRITE
    topic_sys_flag: int = 0


class MappingInfo(JsonBody):
    """Which queues of a static topic a broker holds now."""

    topic: str = ""
    scope: str = "__global__"
    total_queues: int = 0
    bname: str = ""
    epoch: int = 0
    dirty: bool = False
    #: The broker's own queue id by global queue id.
    curr_id_map: dict[str, int] = field(default_factory=dict)


class MappingItem(JsonBody):
    """One stretch of a static topic's queue that one broker holds."""

    gen: int = 0
    queue_id: int = 0
    bname: str = ""
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class MappingDetail(MappingInfo):
    """What a broker knows of a static topic."""

    #: Stretches of each queue, oldest first, by global queue id.
    hosted_queues: dict[str, list[MappingItem]] = field(default_factory=dict)


class TopicRoute(JsonBody):
    """Answer to GET_ROUTEINFO_BY_TOPIC: who holds a topic's queues.

    >>> route = loads(
    ...     b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":"127.0.0.1:1"}}],'
    ...     b'"queueDatas":[{"brokerName":"b","readQueueNums":2,"writeQueueNums":1,"perm":6}]}',
    ...     TopicRoute,
    ... )
    >>> list(route.readable_queues("t")), route.address_of("b")
    ([QueueRef(topic='t', broker_name='b', queue_id=0), \
QueueRef(topic='t', broker_name='b', queue_id=1)], '127.0.0.1:1')
    """

    broker_datas: list[BrokerData] = field(default_factory=list)
    queue_datas: list[QueueData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, MappingInfo] | None = None

    def address_of(self, broker_name: str) -> str | None:
        """Address of a broker's master, None when the route has none."""
        return next((b.master for b in self.broker_datas if b.broker_name == broker_name), None)

    @property
    def is_static(self) -> bool:
        """Whether the topic's queues have numbers of their own, apart from their brokers."""
        return bool(self.topic_queue_mapping_by_broker)

    def holders(self) -> dict[int, str]:
        """Name of the broker that holds each queue of a static topic now, by queue number."""
        found: dict[int, tuple[int, str]] = {}
        for name, mapping in (self.topic_queue_mapping_by_broker or {}).items():
            for queue_id in map(int, mapping.curr_id_map):
                # While a queue moves, two brokers name it: the later word counts.
                found[queue_id] = max(found.get(queue_id, (-1, "")), (mapping.epoch, name))
        return {queue_id: name for queue_id, (_, name) in sorted(found.items())}

    def readable_queues(self, topic: str) -> Iterator[QueueRef]:
        """Queues that may be read, in the order of their brokers' names."""
        if self.is_static:
            yield from self._static_queues(topic)
            return
        for part in sorted(self.queue_datas, key=lambda data: data.broker_name):
            if part.perm & Perm.READ:
                for queue_id in range(part.read_queue_nums):
                    yield QueueRef(topic, part.broker_name, queue_id)

    def writable_queues(self, topic: str) -> Iterator[QueueRef]:
        """Queues that take messages: their broker must have a master."""
        if self.is_static:
            yield from self._static_queues(topic)
            return
        for part in sorted(self.queue_datas, key=lambda data: data.broker_name):
            if part.perm & Perm.WRITE and self.address_of(part.broker_name):
                for queue_id in range(part.write_queue_nums):
                    yield QueueRef(topic, part.broker_name, queue_id)

    def _static_queues(self, topic: str) -> Iterator[QueueRef]:
        return (QueueRef(topic, LOGICAL_BROKER, queue_id) for queue_id in self.holders())


class DataVersion(JsonBody):
    """Version of a table; every change counts it up."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(JsonBody):
    """Settings of a topic on one broker."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = Perm.READ | Perm.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    #: For example ``{"cleanup.policy": "COMPACTION"}``.
    attributes: dict[str, str] = field(default_factory=dict)
    #: Only for static topics (answer to GET_TOPIC_CONFIG).
    mapping_detail: MappingDetail | None = field(default=None, name="mappingDetail")


class TopicConfigList(JsonBody):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicConfigTable(JsonBody):
    """Answer to GET_ALL_TOPIC_CONFIG, and part of REGISTER_BROKER."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, MappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, MappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


class RegisterBroker(JsonBody):
    """Body of REGISTER_BROKER."""

    filter_server_list: list[str] = field(default_factory=list)
    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)


class ClusterInfo(JsonBody):
    """Answer to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    #: Names of brokers by cluster.
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class TopicList(JsonBody):
    """Names of topics."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


# How a broker tells a name server what it has: the body of REGISTER_BROKER, packed or not.

#: Most bytes that a packed body may unpack to.
_MOST_BYTES = 64 * 1024 * 1024
#: First byte of packed bytes; JSON begins with another.
_ZLIB = b"\x78"
_INT = struct.Struct(">i")
#: From this version on a packed body also holds mappings of static topics.
_WITH_MAPPINGS = 413


def body_checksum(body: Buffer) -> int:
    """Compute what the field ``bodyCrc32`` holds."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def read_registration(body: Buffer, *, compressed: bool, version: int) -> RegisterBroker:
    """Read the body of REGISTER_BROKER.

    Parameters
    ----------
    body
        As it came.
    compressed
        Whether the header says that it is packed.
    version
        The broker's version, from the header.

    Raises
    ------
    ProtocolError
        It is not such a body, or unpacks to more than 64 MiB.
    """
    if not len(body):
        return RegisterBroker()
    # RocketMQ 5.3.3 packs when told to (compressedRegister), but its header says that it did not.
    if not compressed and bytes(body[:1]) != _ZLIB:
        return loads(bytes(body), RegisterBroker)
    parts = _WireParts(_unpacked(body))
    data_version = loads(parts.take(), DataVersion)
    configs = [_topic_config(parts.take()) for _ in range(parts.count())]
    filters = loads(parts.take() or b"[]", list[str])
    table = TopicConfigTable(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=data_version,
    )
    if version >= _WITH_MAPPINGS:
        infos = [loads(parts.take(), MappingInfo) for _ in range(parts.count())]
        table.topic_queue_mapping_info_map = {info.topic: info for info in infos}
    return RegisterBroker(filter_server_list=filters, topic_config_serialize_wrapper=table)


def _unpacked(body: Buffer) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, _MOST_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"a packed registration cannot be unpacked: {error}") from error
    if inflater.unconsumed_tail:
        raise ProtocolError(f"a packed registration unpacks to more than {_MOST_BYTES} bytes")
    return content


class _WireParts:
    """Numbers, and texts with their lengths in front, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def count(self) -> int:
        """Read a number of things to come."""
        end = self._at + _INT.size
        if end > len(self._content):
            raise ProtocolError("a packed registration ends too early")
        (number,) = _INT.unpack_from(self._content, self._at)
        if number < 0 or number > len(self._content) - end:
            raise ProtocolError(f"a packed registration claims {number} bytes or things to come")
        self._at = end
        return int(number)

    def take(self) -> bytes:
        """Read a text."""
        size = self.count()
        self._at += size
        return self._content[self._at - size : self._at]


def _topic_config(text: bytes) -> TopicConfig:
    """Read a topic's settings as brokers pack them: words with blanks between."""
    words = text.decode(errors="replace").split(" ", 5)
    try:
        name, reads, writes, perm, kind = words[:5]
        attributes = loads(words[5].encode(), dict[str, str]) if len(words) > 5 else {}
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(reads),
            write_queue_nums=int(writes),
            perm=int(perm),
            topic_filter_type=kind,
            attributes=attributes,
        )
    except ValueError as error:
        raise ProtocolError(f"{text!r} in a packed registration is no topic: {error}") from error
