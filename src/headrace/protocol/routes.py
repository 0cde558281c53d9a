"""Where topics live: routes, topic settings and clusters, as the protocol's JSON bodies."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast, overload

import msgspec
from msgspec import field

from headrace.errors import InvalidParameterError, ProtocolError, SettingsError
from headrace.protocol.codes import Perm

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


_OF_BROKERS = re.compile(
    r"%.*|(CID_)?(?i:rmq_sys_).*|BenchmarkTest|DefaultHeartBeatSyncerTopic|OFFSET_MOVED_EVENT"
    r"|SCHEDULE_TOPIC_XXXX|SELF_TEST_TOPIC|TBW102|TRANS_CHECK_MAX_TIME_TOPIC"
)


def is_of_brokers(topic: str) -> bool:
    """Return whether RocketMQ's brokers and groups keep a topic for themselves.

    Besides, a cluster and each of its brokers have a topic of their own name.

    >>> is_of_brokers("%RETRY%readers"), is_of_brokers("orders")
    (True, False)
    """
    return _OF_BROKERS.fullmatch(topic) is not None


# Attributes of topics: the string that changes them, and what it may say.
#
# The string is a comma-joined list of ``+key=value`` (add or alter) and ``-key`` (delete).

CLEANUP_POLICY = "cleanup.policy"
COMPACTED = {CLEANUP_POLICY: "COMPACTION"}
"""Attributes of a topic that keeps the newest message of each key."""
#: RocketMQ answers a wrong attribute with SYSTEM_ERROR, not with INVALID_PARAMETER.
_NUMBER = 1


@dataclass(frozen=True, slots=True)
class _Attribute:
    accepts: Callable[[str], bool]
    #: What it accepts, for messages.
    values: str
    changeable: bool


def _one_of(*values: str, changeable: bool) -> _Attribute:
    return _Attribute(values.__contains__, ", ".join(values), changeable)


def _is_time(value: str) -> bool:
    return value == "-1" or (value.isascii() and value.isdigit() and len(value) < 19)


_ATTRIBUTES = {
    "queue.type": _one_of("SimpleCQ", "BatchCQ", changeable=False),
    CLEANUP_POLICY: _one_of("DELETE", "COMPACTION", changeable=False),
    "message.type": _one_of(
        "UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", changeable=True
    ),
    "reserve.time": _Attribute(_is_time, "a number of milliseconds, or -1", changeable=True),
}


def keeps_newest(attributes: Mapping[str, str]) -> bool:
    """Return whether a topic with such attributes keeps the newest message of each key.

    >>> keeps_newest(COMPACTED | {"message.type": "NORMAL"}), keeps_newest({})
    (True, False)
    """
    return COMPACTED.items() <= attributes.items()


def apply_attributes(current: Mapping[str, str] | None, changes: str) -> dict[str, str]:
    """Change a topic's attributes.

    Parameters
    ----------
    current
        The topic's attributes; None for a topic that is being created.
    changes
        What to change, as the string described above.

    Raises
    ------
    InvalidParameterError
        The string is malformed, or asks for what is not possible.  Nothing is changed then.

    Examples
    --------
    >>> apply_attributes(None, "+cleanup.policy=COMPACTION,+message.type=NORMAL")
    {'cleanup.policy': 'COMPACTION', 'message.type': 'NORMAL'}
    >>> apply_attributes({"message.type": "NORMAL"}, "-message.type")
    {}
    """
    changed = dict(current or {})
    seen: set[str] = set()
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, value = _parse(change)
        if key in seen:
            raise _refusal(f"key duplication: {key}")
        seen.add(key)
        _check(key, value, current)
        if value is None:
            del changed[key]
        else:
            changed[key] = value
    return changed


def _refusal(message: str, hint: str | None = None) -> InvalidParameterError:
    return InvalidParameterError(message, hint=hint, number=_NUMBER)


def _parse(change: str) -> tuple[str, str | None]:
    """Return key and new value of a change; the value is None when the key is to go."""
    key, equals, value = (part.strip() for part in change[1:].partition("="))
    if change[0] == "+" and equals and key and value:
        return key, value
    if change[0] == "-" and key and not equals:
        return key, None
    hint = "write +key=value to add or alter, -key to delete"
    kind = "add/alter" if "=" in change else "delete"
    raise _refusal(f"{kind} attribute format is wrong: {change}", hint)


def _check(key: str, value: str | None, current: Mapping[str, str] | None) -> None:
    attribute = _ATTRIBUTES.get(key)
    if attribute is None:
        raise _refusal(f"unsupported key: {key}", f"there are {', '.join(_ATTRIBUTES)}")
    if value is None and (current is None or key not in current):
        raise _refusal(f"attempt to delete a nonexistent key: {key}")
    if current is not None and not attribute.changeable and value != current.get(key):
        raise _refusal(
            f"attempt to update an unchangeable attribute. key: {key}",
            "delete the topic and create it anew",
        )
    if value is not None and not attribute.accepts(value):
        raise _refusal(f"attribute {key} cannot be {value}", f"possible: {attribute.values}")


# JSON as Java's fastjson writes it: also with bare keys and with objects as keys.
#
# A key that is not a string becomes its compact JSON text, which is what a strict writer puts
# there: ``{{"queueId":0}:1}`` and ``{"{\"queueId\":0}":1}`` read the same.

_MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:{}\[\]\"']+")
_PLAIN = re.compile(r"[^\"'\\]*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "F": "\f"}
_HEX_ESCAPES = {"u": 4, "x": 2}
_LITERALS: dict[str, object] = {"true": True, "false": False, "null": None, "NaN": None}


def parse(data: bytes | bytearray | memoryview | str) -> object:
    """Read one JSON value, strict or as fastjson writes it.

    Raises
    ------
    ProtocolError
        The text is neither.

    Examples
    --------
    >>> parse(b'{0:"127.0.0.1:10911"}')
    {'0': '127.0.0.1:10911'}
    >>> parse(b'{{"queueId":0}:{"offset":5}}')
    {'{"queueId":0}': {'offset': 5}}
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    return _Parser(text).document()


class _Parser:
    __slots__ = ("_at", "_depth", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> object:
        value = self._value()
        if self._peek():
            raise self._error("more text after the value")
        return value

    def _error(self, what: str) -> ProtocolError:
        around = self._text[max(0, self._at - 20) : self._at + 20]
        return ProtocolError(f"a JSON body cannot be read: {what} at {self._at}, near {around!r}")

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        if space is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _take(self, mark: str) -> bool:
        if self._peek() != mark:
            return False
        self._at += 1
        return True

    def _value(self) -> object:
        start = self._peek()
        if start in ('"', "'") and start:
            return self._string(start)
        if start not in ("{", "["):
            return self._word()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} levels")
        self._at += 1
        value: object = self._members() if start == "{" else self._items()
        self._depth -= 1
        return value

    def _members(self) -> dict[str, object]:
        members: dict[str, object] = {}
        while not self._take("}"):
            key = self._value()
            if not self._take(":"):
                raise self._error("no colon after a key")
            name = key if isinstance(key, str) else msgspec.json.encode(key).decode()
            members[name] = self._value()
            if not self._take(",") and self._peek() != "}":
                raise self._error("neither comma nor brace after a member")
        return members

    def _items(self) -> list[object]:
        items: list[object] = []
        while not self._take("]"):
            items.append(self._value())
            if not self._take(",") and self._peek() != "]":
                raise self._error("neither comma nor bracket after an item")
        return items

    def _word(self) -> object:
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._error("no value")
        word = match.group()
        self._at = match.end()
        if word in _LITERALS:
            return _LITERALS[word]
        try:
            return msgspec.json.decode(word)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            if self._peek() == ":":
                return word
            raise self._error(f"{word[:20]!r} is no value") from None

    def _string(self, quote: str) -> str:
        self._at += 1
        pieces: list[str] = []
        while True:
            plain = _PLAIN.match(self._text, self._at)
            if plain is not None:
                pieces.append(plain.group())
                self._at = plain.end()
            mark = self._text[self._at : self._at + 1]
            if not mark:
                raise self._error("a string without end")
            self._at += 1
            if mark == quote:
                # Escaped surrogate pairs arrive as two units: join them, and mend lone ones.
                joined = "".join(pieces).encode("utf-16-be", "surrogatepass")
                return joined.decode("utf-16-be", "replace")
            pieces.append(self._escape() if mark == "\\" else mark)

    def _escape(self) -> str:
        mark = self._text[self._at : self._at + 1]
        self._at += 1
        if mark not in _HEX_ESCAPES:
            return _ESCAPES.get(mark, mark)
        digits = self._text[self._at : self._at + _HEX_ESCAPES[mark]]
        self._at += len(digits)
        if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX_ESCAPES[mark]}}}", digits):
            raise self._error("a broken escape")
        return chr(int(digits, 16))


T = TypeVar("T")


class JsonBody(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Base of all JSON bodies: Python names here, Java's names on the wire.

    Tables have many of them, and none holds itself: nobody looks for garbage there.
    """


class MessageQueue(
    msgspec.Struct,
    frozen=True,
    order=True,
    gc=False,
    rename={"broker": "brokerName", "queue_id": "queueId"},
):
    """One queue of a topic on one broker, also as JSON bodies name it.

    Queues sort by topic, broker and number, as every member of a group must sort them.

    Examples
    --------
    >>> queue = MessageQueue("lines", "broker-a", 3)
    >>> queue.name
    'lines@broker-a@3'
    >>> queue.key
    '{"topic":"lines","brokerName":"broker-a","queueId":3}'
    >>> MessageQueue.parse(queue.name) == MessageQueue.of_key(queue.key) == queue
    True
    """

    topic: str
    #: Name of the broker that holds the queue, not its address.
    broker: str
    queue_id: int

    @property
    def name(self) -> str:
        """The queue in one word, ``topic@broker@queue-id``."""
        return f"{self.topic}@{self.broker}@{self.queue_id}"

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        """The queue as the key of a JSON object: a string that holds the queue's own JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_key(cls, key: str) -> MessageQueue:
        """Read a queue from the key of a JSON object."""
        return loads(key, cls)

    @classmethod
    def parse(cls, name: str) -> MessageQueue:
        """Read back a ``name``.

        Raises
        ------
        SettingsError
            If it is not of the form ``topic@broker@queue-id``.
        """
        topic, _, rest = name.partition("@")
        broker, _, queue_id = rest.rpartition("@")
        if not topic or not broker or not queue_id.isdecimal():
            raise SettingsError(
                f"{name!r} is not the name of a queue", hint="write topic@broker@queue-id"
            )
        return cls(topic, broker, int(queue_id))


@overload
def loads(body: bytes | bytearray | memoryview | str) -> object: ...
@overload
def loads(body: bytes | bytearray | memoryview | str, kind: type[T]) -> T: ...
def loads(body: bytes | bytearray | memoryview | str, kind: type[T] | None = None) -> T | object:
    """Read a JSON body, strict or as fastjson writes it, into a value of the given type.

    Members that are missing or null take their defaults, unknown ones are left out.

    Raises
    ------
    ProtocolError
        The body is not JSON or does not have the type's shape.

    Examples
    --------
    >>> loads(b'{"queueId":4,"topic":"T","brokerName":"b",}', MessageQueue).queue_id
    4
    """
    value = parse(body)
    if kind is None:
        return value
    try:
        return msgspec.convert(_without_nulls(value), kind, strict=False)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a body is no {kind.__name__}: {error}") from error


def dumps(value: object) -> bytes:
    """Write a JSON body; members that are None are left out.

    >>> dumps({"topic": "T", "remark": None})
    b'{"topic":"T"}'
    """
    return msgspec.json.encode(_without_nulls(msgspec.to_builtins(value)))


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {k: _without_nulls(v) for k, v in members.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


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
    ([MessageQueue(topic='t', broker='b', queue_id=0), \
MessageQueue(topic='t', broker='b', queue_id=1)], '127.0.0.1:1')
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
        """Return the broker that holds each queue of a static topic now, by queue number."""
        found: dict[int, tuple[int, str]] = {}
        for name, mapping in (self.topic_queue_mapping_by_broker or {}).items():
            for queue_id in map(int, mapping.curr_id_map):
                # While a queue moves, two brokers name it: the later one counts.
                found[queue_id] = max(found.get(queue_id, (-1, "")), (mapping.epoch, name))
        return {queue_id: name for queue_id, (_, name) in sorted(found.items())}

    def readable_queues(self, topic: str) -> Iterator[MessageQueue]:
        """Queues that may be read, in the order of their brokers' names."""
        if self.is_static:
            yield from self._static_queues(topic)
            return
        for part in sorted(self.queue_datas, key=lambda data: data.broker_name):
            if part.perm & Perm.READ:
                for queue_id in range(part.read_queue_nums):
                    yield MessageQueue(topic, part.broker_name, queue_id)

    def writable_queues(self, topic: str) -> Iterator[MessageQueue]:
        """Queues that take messages: their broker must have a master."""
        if self.is_static:
            yield from self._static_queues(topic)
            return
        for part in sorted(self.queue_datas, key=lambda data: data.broker_name):
            if part.perm & Perm.WRITE and self.address_of(part.broker_name):
                for queue_id in range(part.write_queue_nums):
                    yield MessageQueue(topic, part.broker_name, queue_id)

    def _static_queues(self, topic: str) -> Iterator[MessageQueue]:
        return (MessageQueue(topic, LOGICAL_BROKER, queue_id) for queue_id in self.holders())


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
