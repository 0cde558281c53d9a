"""Stock RocketMQ brokers in memory: sends, pulls, offsets, and locks that they forget.

They are what surrounds the product, as the network does: theirs is the only broker that is played.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace.broker.clients import QueueLocks
from headrace.errors import BrokerError, TopicNotFoundError
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.frames import Command, FrameBuffer, encode
from headrace.protocol.groups import LockRequest, LockResult, RuntimeInfo
from headrace.protocol.layout import record_starts
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.records import Records, batch_to_records, encode_records
from headrace.protocol.routes import (
    BrokerData,
    ClusterInfo,
    MessageQueue,
    QueueData,
    TopicConfig,
    TopicList,
    TopicRoute,
    dumps,
    loads,
)
from headrace.protocol.stamps import stamp_records
from tests.simulation.network import DirectLoop, Network
from tests.simulation.world import BEGIN, World

HOST, NAME_SERVER = "10.0.0.1", 9876

LOCK_EXPIRY = 6.0
#: How long it takes until readers see what is stored, at most, s.
_SHOWN_AFTER = (*[0.0] * 12, 0.005, 0.005, 0.05, 3.0)
_SHOWN_LATE = (0.0, 0.05, 3.0, 3.0)
_COMPACTED = ("-commitTopic", "-stateTopic")

Answer = Callable[[Command], None]
Handler = Callable[[Command, Answer], None]


def _confirm(queue: Queue, first: int) -> None:
    queue.first = max(queue.first, first)


@dataclass
class Queue:
    """The messages of one queue, each as it is stored."""

    records: list[bytes] = field(default_factory=list)
    #: Offsets that compaction has taken.
    holes: set[int] = field(default_factory=set)
    #: How many of them readers see.
    shown: int = 0
    #: The first offset that is left, as the broker says.
    first: int = 0
    #: Up to where messages are gone: it may be some time until the first offset says so.
    gone: int = 0

    def compact(self) -> None:
        """Keep the last message of each key, as compaction does to all but its newest files.

        One without a body goes, too; the last message that is shown is in the newest file.
        """
        last = {message.keys: message for message in self.messages()}
        kept = {message.queue_offset for message in last.values() if message.body}
        self.holes = set(range(self.shown - 1)) - kept

    def pull(self, offset: int, most: int) -> tuple[bytes, int]:
        """Give messages from an offset on, and where the next ones begin."""
        begin = max(offset, self.gone)
        there = (at for at in range(begin, self.shown) if at not in self.holes)
        found = list(itertools.islice(there, most))
        return b"".join(self.records[at] for at in found), found[-1] + 1 if found else offset

    def messages(self) -> list[StoredMessage]:
        """Decode all of them."""
        return decode_messages(b"".join(self.records))


class SimulatedBroker:
    """A broker of RocketMQ; the first one of a cluster is its name server, too.

    Parameters
    ----------
    world
        Where it stands.
    network
        How it is reached.
    peers
        The brokers of the cluster that it joins.
    """

    def __init__(self, world: World, network: Network, peers: list[SimulatedBroker]) -> None:
        self.peers = peers
        self.name = f"broker-{'abc'[len(self.peers)]}"
        self.port = NAME_SERVER + len(self.peers)
        self.peers.append(self)
        self.topics: dict[str, list[Queue]] = {}
        self._deleted: list[list[Queue]] = []
        #: From when on the name server knows it.
        self.known_from = 0.0
        self._perms: dict[str, Perm] = {}
        #: Messages whose request was held up on its way: the only ones that may be there twice.
        self.held_up: set[tuple[str, int, str]] = set()
        self._world = world
        self._network = network
        self._position = 0
        self._hidden: deque[tuple[Queue, int]] = deque()
        self._stored = 0
        self.shown_after: Sequence[float] = _SHOWN_AFTER
        #: Called after each send, with its topic.
        self.on_send: Callable[[str], None] = lambda _: None
        self._begin()
        self._handlers: dict[int, Handler] = {
            int(code): getattr(self, name) for code, name in _HANDLERS.items()
        }
        self._loop = DirectLoop(world, self.name)
        self._listen()

    def _listen(self) -> None:
        self._network.listen(self.port, self._loop, lambda: Frames(self.handle))

    def _begin(self) -> None:
        self._locks, self._began = QueueLocks(LOCK_EXPIRY), self.now

    @property
    def now(self) -> int:
        """The broker's clock, ms since 1970."""
        return int((BEGIN + self._world.now) * 1000)

    @property
    def place(self) -> BrokerData:
        """Say where it is."""
        address = f"{HOST}:{self.port}"
        return BrokerData(cluster="c", broker_name=self.name, broker_addrs={"0": address})

    @property
    def _known(self) -> list[SimulatedBroker]:
        return [broker for broker in self.peers if broker.known_from <= self._world.now]

    def create(self, topic: str, queues: int, perm: Perm = Perm.READ | Perm.WRITE) -> None:
        """Make a topic, or give one more queues."""
        self._perms[topic] = perm
        there = self.topics.setdefault(topic, [])
        there += [Queue() for _ in range(queues - len(there))]

    def append(self, topic: str, queue_id: int, records: Records) -> int:
        """Store records; give the offset of the first."""
        queue = self.topics[topic][queue_id]
        first = len(queue.records)
        stamp_records(records, first, self._position, self.now, (HOST, self.port))
        self._position += len(records.data)
        starts = [*records.starts.tolist(), len(records.data)]
        data = bytes(records.data)
        queue.records += [data[a:b] for a, b in itertools.pairwise(starts)]
        self._show_later(queue)
        return first

    def _show_later(self, queue: Queue) -> None:
        """Show messages in the order in which they were stored, of all topics together."""
        self._hidden.append((queue, len(queue.records)))
        stored = self._stored = self._stored + 1
        chance = self._world.chance
        delay = chance.choice(self.shown_after)
        if delay:
            self._world.after(delay * chance.random(), lambda: self._show(stored))
        else:
            self._show(stored)

    def _show(self, stored: int) -> None:
        while self._hidden and self._stored - len(self._hidden) < stored:
            queue, end = self._hidden.popleft()
            queue.shown = max(queue.shown, end)

    def compact(self, kinds: tuple[str, ...] = _COMPACTED) -> None:
        """Compact topics that are meant to be."""
        for topic, queues in self.topics.items():
            for queue in queues if topic.endswith(kinds) else ():
                queue.compact()

    def expire(self, topic: str, age: float) -> None:
        """Delete what is older of a topic, and say some time later where its queues begin."""
        oldest = self.now - int(age * 1000)
        for queue in self.topics.get(topic, ()):
            old = [m.queue_offset for m in queue.messages() if m.stored < oldest]
            queue.gone = max(queue.gone, min(len(old), queue.shown))
            delay = self._world.chance.choice((0.0, 0.05, 0.5))
            self._world.after(delay, partial(_confirm, queue, queue.gone))

    def restart(self, seconds: float) -> None:
        """End, and come back later with what is on disk; locks are in memory."""
        self._world.tell(f"{self.name} is killed")
        self._begin()
        self._show(self._stored)
        self._loop.restart()
        self._world.after(seconds, self._listen)

    def handle(self, command: Command, answer: Answer) -> None:
        """Handle a request."""
        handler = self._handlers.get(command.code)
        try:
            if handler is None:
                raise BrokerError(f"request {command.code}", number=3)
            handler(command, answer)
        except BrokerError as error:
            code = ResponseCode.SYSTEM_ERROR if error.number is None else error.number
            answer(command.reply(code, str(error)))

    # Where things are

    def _route(self, command: Command, answer: Answer) -> None:
        topic = command.ext["topic"]
        there = [broker for broker in self._known if topic in broker.topics]
        if not there:
            raise TopicNotFoundError(f"no topic {topic}")
        queues = [
            QueueData(
                broker_name=broker.name,
                read_queue_nums=len(broker.topics[topic]),
                write_queue_nums=len(broker.topics[topic]),
                perm=broker._perms[topic],
            )
            for broker in there
        ]
        datas = [broker.place for broker in there]
        route = TopicRoute(broker_datas=datas, queue_datas=queues)
        answer(command.reply(body=dumps(route)))

    def _cluster(self, command: Command, answer: Answer) -> None:
        places = {broker.name: broker.place for broker in self._known}
        info = ClusterInfo(broker_addr_table=places, cluster_addr_table={"c": list(places)})
        answer(command.reply(body=dumps(info)))

    def _runtime(self, command: Command, answer: Answer) -> None:
        info = RuntimeInfo(table={"bootTimestamp": str(self._began)})
        answer(command.reply(body=dumps(info)))

    def _topics(self, command: Command, answer: Answer) -> None:
        every = {topic for broker in self.peers for topic in broker.topics}
        answer(command.reply(body=dumps(TopicList(topic_list=sorted(every)))))

    def _create_topic(self, command: Command, answer: Answer) -> None:
        ext = command.ext
        self.create(ext["topic"], int(ext["writeQueueNums"]), Perm(int(ext["perm"])))
        answer(command.reply())

    def _delete_topic(self, command: Command, answer: Answer) -> None:
        if (queues := self.topics.pop(command.ext["topic"], None)) is not None:
            self._deleted.append(queues)
            self.on_send(command.ext["topic"])
        answer(command.reply())

    def _topic_config(self, command: Command, answer: Answer) -> None:
        topic = command.ext["topic"]
        if topic.endswith(_COMPACTED) or topic not in self.topics:
            raise BrokerError("unknown", number=3)
        count = len(self.topics[topic])
        config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
        answer(command.reply(body=dumps(config)))

    def _fine(self, command: Command, answer: Answer) -> None:
        answer(command.reply())

    def _capabilities(self, command: Command, answer: Answer) -> None:
        raise BrokerError("unknown", number=3)

    # Reading

    def _queue(self, command: Command) -> Queue:
        topic, queue_id = command.ext["topic"], int(command.ext["queueId"])
        if topic not in self.topics:
            raise TopicNotFoundError(f"no topic {topic}")
        return self.topics[topic][queue_id]

    def _pull(self, command: Command, answer: Answer) -> None:
        queue, offset = self._queue(command), int(command.ext["queueOffset"])
        found, following = queue.pull(offset, int(command.ext["maxMsgNums"]))
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        if not queue.first <= offset <= queue.shown:
            code, found = ResponseCode.PULL_OFFSET_MOVED, b""
            following = queue.first if offset < queue.first else queue.shown
        ext = {
            "nextBeginOffset": str(following),
            "minOffset": str(queue.first),
            "maxOffset": str(queue.shown),
        }
        answer(command.reply(code, None, ext, found))

    def _min_offset(self, command: Command, answer: Answer) -> None:
        """Answer as a stock broker whose log has expired: of compacted topics pulls give more."""
        forgets = command.ext["topic"].endswith(_COMPACTED)
        queue = self._queue_or_empty(command)
        answer(command.reply(0, None, {"offset": str(queue.shown if forgets else queue.first)}))

    def _queue_or_empty(self, command: Command) -> Queue:
        """Give a queue as stock brokers do who are asked for offsets: any name has one."""
        return self._queue(command) if command.ext["topic"] in self.topics else Queue()

    def _max_offset(self, command: Command, answer: Answer) -> None:
        answer(command.reply(0, None, {"offset": str(self._queue_or_empty(command).shown)}))

    # Writing, and locks

    def _send_message(self, command: Command, answer: Answer) -> None:
        topic, queue_id = command.ext["b"], int(command.ext["e"])
        properties, born = command.ext.get("i", "").encode(), int(command.ext["g"])
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            records = batch_to_records(command.payload, topic, queue_id, born)
        else:
            records = encode_records(topic, queue_id, [bytes(command.payload)], [properties], born)
        if self._network.is_late:
            for message in decode_messages(bytes(records.data)):
                self.held_up.add((topic, queue_id, message.properties.get("TX", "")))
        first = self.append(topic, queue_id, records)
        self.on_send(topic)
        ext = {"msgId": "", "queueId": str(queue_id), "queueOffset": str(first)}
        answer(command.reply(0, None, ext))

    def _lock(self, command: Command, answer: Answer) -> None:
        asked = loads(command.payload, LockRequest)
        wanted = [(queue.topic, queue.queue_id) for queue in asked.mq_set]
        now = self._world.now
        granted = self._locks.acquire(asked.consumer_group, asked.client_id, wanted, now=now)
        refs = [MessageQueue(topic, self.name, number) for topic, number in granted]
        result = LockResult(granted=refs)
        answer(command.reply(body=dumps(result)))

    def _unlock(self, command: Command, answer: Answer) -> None:
        asked = loads(command.payload, LockRequest)
        wanted = [(queue.topic, queue.queue_id) for queue in asked.mq_set]
        self._locks.release(asked.consumer_group, asked.client_id, wanted)
        answer(command.reply())


_HANDLERS = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "_route",
    RequestCode.GET_BROKER_CLUSTER_INFO: "_cluster",
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "_topics",
    RequestCode.GET_BROKER_RUNTIME_INFO: "_runtime",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "_create_topic",
    RequestCode.DELETE_TOPIC_IN_BROKER: "_delete_topic",
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "_fine",
    RequestCode.GET_TOPIC_CONFIG: "_topic_config",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "_fine",
    RequestCode.UPDATE_CONSUMER_OFFSET: "_fine",
    RequestCode.HEADRACE_CAPABILITIES: "_capabilities",
    RequestCode.PULL_MESSAGE: "_pull",
    RequestCode.GET_MIN_OFFSET: "_min_offset",
    RequestCode.GET_MAX_OFFSET: "_max_offset",
    RequestCode.SEND_MESSAGE_V2: "_send_message",
    RequestCode.SEND_BATCH_MESSAGE: "_send_message",
    RequestCode.LOCK_BATCH_MQ: "_lock",
    RequestCode.UNLOCK_BATCH_MQ: "_unlock",
}


class Frames:
    """The broker's end of a connection."""

    def __init__(self, handle: Callable[[Command, Answer], None]) -> None:
        self._handle = handle
        self._frames = FrameBuffer()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for command in self._frames.feed(data):
            self._handle(command, lambda reply: self._transport.writelines(encode(reply)))

    def connection_lost(self, error: Exception | None) -> None:
        """Do nothing."""


class RocketMQCluster:
    """One to three brokers.

    Parameters
    ----------
    world, network
        Where they stand, and how they are reached.
    size
        How many there are.
    """

    def __init__(self, world: World, network: Network, size: int) -> None:
        self.brokers: list[SimulatedBroker] = []
        self._world = world
        #: Called when messages have become visible.
        self.on_arrival: Callable[[], None] = lambda: None
        for _ in range(size):
            broker = SimulatedBroker(world, network, self.brokers)
            broker.on_send = lambda _: self.on_arrival()

    def show_late(self) -> None:
        """Let readers wait for what is stored, often."""
        # The commit topic is on the first: what is stored there is waited for often, and so shown.
        for broker in self.brokers[1:] or self.brokers:
            broker.shown_after = _SHOWN_LATE

    def keep_compacting(self) -> None:
        """Compact commit topics again and again."""
        for broker in self.brokers:
            broker.compact(_COMPACTED[:1])
        self._world.after(0.5, self.keep_compacting)

    def compact(self) -> None:
        """Compact what is meant to be."""
        for broker in self.brokers:
            broker.compact()

    def send_late(self, topics: Collection[str]) -> None:
        """Have the first message of each queue arrive again, that was held up since then."""
        for broker, topic in itertools.product(self.brokers, topics):
            for number, queue in enumerate(broker.topics.get(topic, ())):
                if queue.records:
                    data = bytearray(queue.records[0])
                    (message,) = decode_messages(bytes(data))
                    broker.held_up.add((topic, number, message.properties["TX"]))
                    broker.append(topic, number, Records(data, record_starts(data)))

    def expire(self, topic: str, age: float) -> None:
        """Delete what is older of a topic."""
        for broker in self.brokers:
            broker.expire(topic, age)

    def crash(self, seconds: float) -> None:
        """Kill one of them; it is back some time later."""
        self._world.chance.choice(self.brokers).restart(seconds)
