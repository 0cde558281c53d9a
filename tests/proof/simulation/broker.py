"""A broker in memory that speaks the remoting protocol: Headrace's requests and RocketMQ's.

Who may commit is judged by the real broker's own rules (:class:`~headrace.broker.jobs.JobBook`);
where messages lie, and what a crash leaves of them, is simulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from headrace.broker.jobs import JobBook, JobState, check_parts
from headrace.broker.locks import QueueLocks
from headrace.broker.settings import Guards
from headrace.errors import BrokerError, TopicNotFoundError
from headrace.protocol.batches import batch_to_records
from headrace.protocol.bodies import QueueRef, dumps, loads
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.columns import record_starts
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import KEYS, encode_properties
from headrace.protocol.records import Records, encode_records
from headrace.protocol.routes import BrokerData, ClusterInfo, QueueData, TopicList, TopicRoute
from headrace.protocol.stamps import stamp_records
from headrace.protocol.transactions import (
    CommitAnswer,
    CommitRecord,
    CommitRequest,
    OpenAnswer,
    OpenRequest,
    PlanAnswer,
    PlanRequest,
    StagedPart,
    decode_sections,
)
from tests.proof.simulation.world import BEGIN, World

HOST, NAME_SERVER = "10.0.0.1", 9876

LOCK_EXPIRY = 6.0
_COMPACTED = ("-commitTopic", "-stateTopic")

StageKey = tuple[str, int, int, int, int, int]
Answer = Callable[[Command], None]
Handler = Callable[[Command, Answer], None]


@dataclass
class Queue:
    """The messages of one queue, each as it is stored."""

    records: list[bytes] = field(default_factory=list)
    #: Offsets that compaction has taken.
    holes: set[int] = field(default_factory=set)

    def compact(self) -> None:
        """Keep the last message of each key, as compaction does to all but its newest files."""
        last = {message.keys: message.queue_offset for message in self.messages()}
        self.holes = set(range(len(self.records))) - set(last.values())

    def pull(self, offset: int, most: int) -> tuple[bytes, int]:
        """Give messages from an offset on, and where the next ones begin."""
        there = (at for at in range(offset, len(self.records)) if at not in self.holes)
        found = list(itertools.islice(there, most))
        return b"".join(self.records[at] for at in found), found[-1] + 1 if found else offset

    def messages(self) -> list[StoredMessage]:
        """Decode all of them."""
        return decode_messages(b"".join(self.records))


class SimulatedBroker:
    """Topics, staged parts and jobs.

    Parameters
    ----------
    world
        Where it stands.
    guards
        Safeguards of the commit protocol; a mutant lacks some.
    embedded
        Whether it knows the requests of jobs, as Headrace's own broker does.
    peers
        The brokers of the cluster that it joins.
    """

    def __init__(
        self,
        world: World,
        guards: Guards | None = None,
        *,
        embedded: bool = True,
        peers: list[SimulatedBroker] | None = None,
    ) -> None:
        #: All brokers of the cluster; the first one is the name server, too.
        self.peers = [] if peers is None else peers
        self.name = f"broker-{'abc'[len(self.peers)]}"
        self.port = NAME_SERVER + len(self.peers)
        self.peers.append(self)
        self.topics: dict[str, list[Queue]] = {}
        #: Called after each commit, with its request.
        self.on_commit: Callable[[CommitRequest], None] = lambda _: None
        self._world = world
        self._guards = guards or Guards()
        self._embedded = embedded
        self._book = JobBook(self._guards)
        self._staged: dict[StageKey, dict[int, bytes]] = {}
        self._position = 0
        self._sent: dict[int, list[str]] = {}
        #: Called after each send, with its topic.
        self.on_send: Callable[[str], None] = lambda _: None
        self._locks = QueueLocks(LOCK_EXPIRY)
        self._handlers: dict[int, Handler] = {
            int(code): getattr(self, name) for code, name in _HANDLERS.items()
        }

    @property
    def now(self) -> int:
        """The broker's clock, ms since 1970."""
        return int((BEGIN + self._world.now) * 1000)

    @property
    def place(self) -> BrokerData:
        """Say where it is."""
        address = f"{HOST}:{self.port}"
        return BrokerData(cluster="c", broker_name=self.name, broker_addrs={"0": address})

    def create(self, topic: str, queues: int) -> None:
        """Make a topic."""
        self.topics.setdefault(topic, [Queue() for _ in range(queues)])

    def append(self, topic: str, queue_id: int, records: Records) -> int:
        """Store records; give the offset of the first."""
        queue = self.topics[topic][queue_id]
        first = len(queue.records)
        stamp_records(records, first, self._position, self.now, (HOST, self.port))
        self._position += len(records.data)
        starts = [*records.starts.tolist(), len(records.data)]
        data = bytes(records.data)
        queue.records += [data[a:b] for a, b in itertools.pairwise(starts)]
        return first

    def send(self, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        """Store messages, as a producer would."""
        self.append(topic, queue_id, encode_records(topic, queue_id, bodies, None, self.now))
        self._sent.setdefault(queue_id, []).extend(body.decode() for body in bodies)

    def compact(self) -> None:
        """Compact the topics that are meant to be."""
        for topic, queues in self.topics.items():
            for queue in queues if topic.endswith(_COMPACTED) else ():
                queue.compact()

    def lines(self, queue_id: int, end: int) -> list[str]:
        """Give what was sent to a queue of the source, up to an offset."""
        return self._sent.setdefault(queue_id, [])[:end]

    def restart(self) -> None:
        """Come back with what is on disk: messages and staged parts."""
        # Locks are in the broker's memory.
        self._locks = QueueLocks(LOCK_EXPIRY)
        topics = [topic for topic, _ in self._book.items()]
        self._book = JobBook(self._guards)
        for topic in topics:
            self._take_note(topic)

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
        there = [broker for broker in self.peers if topic in broker.topics]
        if not there:
            raise TopicNotFoundError(f"no topic {topic}")
        queues = [
            QueueData(
                broker_name=broker.name,
                read_queue_nums=len(broker.topics[topic]),
                write_queue_nums=len(broker.topics[topic]),
                perm=Perm.READ | Perm.WRITE,
            )
            for broker in there
        ]
        datas = [broker.place for broker in there]
        route = TopicRoute(broker_datas=datas, queue_datas=queues)
        answer(command.reply(body=dumps(route)))

    def _cluster(self, command: Command, answer: Answer) -> None:
        places = {broker.name: broker.place for broker in self.peers}
        info = ClusterInfo(broker_addr_table=places, cluster_addr_table={"c": list(places)})
        answer(command.reply(body=dumps(info)))

    def _topics(self, command: Command, answer: Answer) -> None:
        answer(command.reply(body=dumps(TopicList(topic_list=sorted(self.topics)))))

    def _create_topic(self, command: Command, answer: Answer) -> None:
        self.create(command.ext["topic"], int(command.ext["writeQueueNums"]))
        answer(command.reply())

    def _fine(self, command: Command, answer: Answer) -> None:
        answer(command.reply())

    def _capabilities(self, command: Command, answer: Answer) -> None:
        if not self._embedded:
            raise BrokerError("unknown", number=3)
        answer(command.reply(ext={"headrace": "1", "jobs": "1"}))

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
        ext = {
            "nextBeginOffset": str(following),
            "minOffset": "0",
            "maxOffset": str(len(queue.records)),
        }
        answer(command.reply(code, None, ext, found))

    def _min_offset(self, command: Command, answer: Answer) -> None:
        """Answer as a stock broker whose log has expired: of compacted topics pulls give more."""
        forgets = not self._embedded and command.ext["topic"].endswith(_COMPACTED)
        first = len(self._queue(command).records) if forgets else 0
        answer(command.reply(0, None, {"offset": str(first)}))

    def _max_offset(self, command: Command, answer: Answer) -> None:
        answer(command.reply(0, None, {"offset": str(len(self._queue(command).records))}))

    # Writing, and locks

    def _send_message(self, command: Command, answer: Answer) -> None:
        topic, queue_id = command.ext["b"], int(command.ext["e"])
        properties, born = command.ext.get("i", "").encode(), int(command.ext["g"])
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            records = batch_to_records(command.payload, topic, queue_id, born)
        else:
            records = encode_records(topic, queue_id, [bytes(command.payload)], [properties], born)
        first = self.append(topic, queue_id, records)
        self.on_send(topic)
        ext = {"msgId": "", "queueId": str(queue_id), "queueOffset": str(first)}
        answer(command.reply(0, None, ext))

    def _lock(self, command: Command, answer: Answer) -> None:
        asked = loads(command.payload, LockRequest)
        wanted = [(queue.topic, queue.queue_id) for queue in asked.mq_set]
        now = self._world.now
        granted = self._locks.acquire(asked.consumer_group, asked.client_id, wanted, now=now)
        refs = [QueueRef(topic, self.name, number) for topic, number in granted]
        result = LockResult(granted=refs)
        answer(command.reply(body=dumps(result)))

    def _unlock(self, command: Command, answer: Answer) -> None:
        asked = loads(command.payload, LockRequest)
        wanted = [(queue.topic, queue.queue_id) for queue in asked.mq_set]
        self._locks.release(asked.consumer_group, asked.client_id, wanted)
        answer(command.reply())

    # Jobs

    def _open(self, command: Command, answer: Answer) -> None:
        asked = msgspec.json.decode(command.payload, type=OpenRequest)
        record = self._book.open(asked, now=self.now)
        self._record(asked.commit_topic, record)
        answer(command.reply(body=_json(OpenAnswer(epoch=record.epoch, record=record))))

    def _stage(self, command: Command, answer: Answer) -> None:
        ext = command.ext
        epoch, batch, stage, partition, attempt = (int(ext[name]) for name in _KEY)
        key = (ext["job"], epoch, batch, stage, partition, attempt)
        self._book.check_stage(key[0], key[1], key[2])
        self._staged.setdefault(key, {})[int(ext["chunk"])] = bytes(command.payload)
        answer(command.reply())

    def _commit(self, command: Command, answer: Answer) -> None:
        asked = msgspec.json.decode(command.payload, type=CommitRequest)
        done = self._book.commit(asked)
        if done is None:
            check_parts(asked, partial(self._held, asked.record))
            for part in asked.parts:
                self._publish(asked.record, part)
            self._record(asked.commit_topic, asked.record)
            done = CommitAnswer(batch=asked.record.batch, already=False, position=self._position)
            self.on_commit(asked)
        answer(command.reply(body=_json(done)))

    def _held(self, record: CommitRecord, part: StagedPart) -> tuple[int, int]:
        chunks = self._staged.get(_stage_key(record, part), {})
        sections = [s for body in chunks.values() for s in decode_sections(body)]
        return len(chunks), sum(section.count for section in sections)

    def _publish(self, record: CommitRecord, part: StagedPart) -> None:
        self._publish_chunks(self._staged.pop(_stage_key(record, part), {}))

    def _publish_chunks(self, chunks: dict[int, bytes]) -> None:
        for _, body in sorted(chunks.items()):
            for section in decode_sections(body):
                data = bytearray(section.records)
                self.append(section.topic, section.queue_id, Records(data, record_starts(data)))

    def _record(self, topic: str, record: CommitRecord) -> None:
        properties = encode_properties({KEYS: f"{record.epoch}-{record.kind}"})
        self.append(topic, 0, encode_records(topic, 0, [_json(record)], [properties], self.now))
        self._take_note(topic)

    def _take_note(self, topic: str) -> None:
        message = decode_messages(self.topics[topic][0].records[-1])[0]
        record = msgspec.json.decode(message.body, type=CommitRecord)
        self._book.recorded(topic, JobState(record=record, position=self._position))

    def _plan(self, command: Command, answer: Answer, *, waited: bool = False) -> None:
        asked = msgspec.json.decode(command.payload, type=PlanRequest)
        ends = {
            f"{topic}@{self.name}@{number}": len(queue.records)
            for topic in asked.topics
            for number, queue in enumerate(self.topics[topic])
        }
        if not waited and asked.wait and all(asked.offsets.get(q, 0) >= e for q, e in ends.items()):
            again = partial(self._plan, command, answer, waited=True)
            self._world.at(self._world.now + asked.wait / 1000, again)
            return
        state = self._book.state(asked.commit_topic)
        plan = PlanAnswer(
            record=state.record if state else None,
            begins=dict.fromkeys(ends, 0),
            ends=_limited(asked.offsets, ends, asked.limit),
            latest=ends,
            position=self._position,
            clock=self.now,
        )
        answer(command.reply(body=_json(plan)))


_KEY = ("epoch", "batch", "stage", "partition", "attempt")
_json = msgspec.json.Encoder().encode

_HANDLERS = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "_route",
    RequestCode.GET_BROKER_CLUSTER_INFO: "_cluster",
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "_topics",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "_create_topic",
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
    RequestCode.OPEN_JOB: "_open",
    RequestCode.STAGE: "_stage",
    RequestCode.COMMIT_BATCH: "_commit",
    RequestCode.PLAN_BATCH: "_plan",
}


def _stage_key(record: CommitRecord, part: StagedPart) -> StageKey:
    return (record.job, record.epoch, record.batch, part.stage, part.partition, part.attempt)


def _limited(offsets: dict[str, int], ends: dict[str, int], limit: int) -> dict[str, int]:
    """Cut a batch to a number of messages, queue by queue."""
    cut, left = {}, limit or 1 << 60
    for queue, end in ends.items():
        begin = offsets.get(queue, 0)
        cut[queue] = min(end, begin + left)
        left -= cut[queue] - begin
    return cut
