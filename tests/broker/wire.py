"""A client of the plainest kind: requests out, answers in."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Buffer, Command, FrameBuffer, encode
from headrace.protocol.messages import Message, encode_batch
from headrace.protocol.records import encode_records
from headrace.protocol.routes import (
    DataVersion,
    RegisterBroker,
    TopicConfig,
    TopicConfigTable,
    dumps,
)
from headrace.protocol.transactions import (
    CommitRecord,
    CommitRequest,
    OpenRequest,
    PlanAnswer,
    PlanRequest,
    Position,
    StagedPart,
    StagedSection,
    encode_sections,
    stored_positions,
)

JOB = "job"
COMMIT_TOPIC = "job-commitTopic"
_ONEWAY = 2


def pull_fields(group: str, topic: str, queue: int, offset: int) -> dict[str, object]:
    """Fields of a pull that names its subscription itself."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
    }


def registration(topics: Iterable[str], version: int) -> bytes:
    """What a broker says of its topics when it registers."""
    table = TopicConfigTable(
        topic_config_table={name: TopicConfig(topic_name=name) for name in topics},
        data_version=DataVersion(counter=version),
    )
    return dumps(RegisterBroker(topic_config_serialize_wrapper=table))


class Wire:
    """One connection to a broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._frames = FrameBuffer()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Command] = {}
        #: Requests that the broker sent.
        self.told: list[Command] = []

    def send(self, code: int, body: Buffer = b"", /, **ext: object) -> int:
        number = next(self._numbers)
        fields = {name: str(value) for name, value in ext.items()}
        command = Command(code, fields, body, opaque=number)
        self._socket.sendall(b"".join(encode(command)))
        return number

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_oneway(self, code: int, **ext: object) -> None:
        fields = {name: str(value) for name, value in ext.items()}
        command = Command(code, fields, opaque=next(self._numbers), flag=_ONEWAY)
        self._socket.sendall(b"".join(encode(command)))

    def receive(self, number: int) -> Command:
        while number not in self._answers:
            self.read()
        return self._answers.pop(number)

    def read(self) -> None:
        """Take the next bytes that come."""
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the connection")
        for command in self._frames.feed(data):
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.told.append(command)

    def limit(self, seconds: float) -> None:
        """Wait no longer than this for anything."""
        self._socket.settimeout(seconds)

    def read_to_the_end(self, seconds: float) -> None:
        """Say that nothing more comes, and read until the broker has answered everything."""
        self.limit(seconds)
        self._socket.shutdown(socket.SHUT_WR)
        while True:
            self.read()

    def answered(self) -> list[Command]:
        """Answers that nobody has asked for yet."""
        return list(self._answers.values())

    def ask(self, code: int, body: Buffer = b"", /, **ext: object) -> Command:
        return self.receive(self.send(code, body, **ext))

    def create(self, topic: str, queues: int = 2, perm: int = 6, attributes: str = "") -> None:
        answer = self.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums=queues,
            writeQueueNums=queues,
            perm=perm,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order="false",
            attributes=attributes,
        )
        assert answer.code == 0, answer.remark

    def put(self, topic: str, body: bytes, queue: int = 0, /, **more: object) -> Command:
        return self.receive(self.start_put(topic, body, queue, **more))

    def start_put(self, topic: str, body: bytes, queue: int = 0, /, **more: object) -> int:
        fields = {"a": "p", "b": topic, "c": "", "d": 4, "e": queue, "f": 0, "g": 1234, "h": 7}
        return self.send(RequestCode.SEND_MESSAGE_V2, body, **(fields | more))

    def put_batch(self, topic: str, messages: Sequence[Message], queue: int = 0) -> Command:
        return self.receive(self.start_batch(topic, messages, queue))

    def start_batch(self, topic: str, messages: Sequence[Message], queue: int = 0) -> int:
        fields = {"a": "p", "b": topic, "c": "", "d": 4, "e": queue, "f": 0, "g": 1234, "h": 0}
        body = encode_batch(messages)
        code = RequestCode.SEND_BATCH_MESSAGE
        return self.send(code, body, **fields, m="true", i="UNIQ_KEY\1x\2")

    def pull(self, topic: str, queue: int = 0, offset: int = 0, /, **more: object) -> Command:
        return self.receive(self.start_pull(topic, queue, offset, **more))

    def start_pull(self, topic: str, queue: int = 0, offset: int = 0, /, **more: object) -> int:
        return self.send(RequestCode.PULL_MESSAGE, **pull_fields("g", topic, queue, offset) | more)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class JobWire(Wire):
    """A connection that speaks for one job."""

    def open(self, driver: str = "host:1") -> Command:
        request = OpenRequest(job=JOB, commit_topic=COMMIT_TOPIC, driver=driver)
        return self.ask(RequestCode.OPEN_JOB, msgspec.json.encode(request))

    def stage(
        self,
        bodies: dict[tuple[str, int], list[bytes]],
        *,
        epoch: int = 1,
        batch: int = 1,
        partition: int = 0,
        attempt: int = 0,
        chunk: int = 0,
    ) -> Command:
        return self.ask(
            RequestCode.STAGE,
            sections(bodies),
            job=JOB,
            epoch=epoch,
            batch=batch,
            stage=0,
            partition=partition,
            attempt=attempt,
            chunk=chunk,
        )

    def commit(
        self,
        batch: int = 1,
        *,
        epoch: int = 1,
        parts: Sequence[StagedPart] = (),
        offsets: dict[str, int] | None = None,
        positions: dict[str, Position] | None = None,
        group: str = JOB,
    ) -> Command:
        request = CommitRequest(
            commit_topic=COMMIT_TOPIC,
            group=group,
            previous=batch - 1,
            parts=list(parts),
            record=CommitRecord(
                job=JOB,
                kind="commit",
                epoch=epoch,
                batch=batch,
                offsets=offsets or {},
                stored_positions=stored_positions(positions or {}),
            ),
        )
        return self.ask(RequestCode.COMMIT_BATCH, msgspec.json.encode(request))

    def start_plan(
        self,
        topics: Sequence[str],
        offsets: dict[str, int] | None = None,
        *,
        limit: int = 0,
        wait: int = 0,
        messages: int = 0,
    ) -> int:
        request = PlanRequest(
            job=JOB,
            commit_topic=COMMIT_TOPIC,
            topics=list(topics),
            offsets=offsets or {},
            limit=limit,
            wait=wait,
            messages=messages,
        )
        return self.send(RequestCode.PLAN_BATCH, msgspec.json.encode(request))

    def planned(self, number: int) -> PlanAnswer:
        answer = self.receive(number)
        assert answer.code == 0, answer.remark
        return msgspec.json.decode(answer.payload, type=PlanAnswer)

    def plan(
        self,
        topics: Sequence[str],
        offsets: dict[str, int] | None = None,
        *,
        limit: int = 0,
        wait: int = 0,
        messages: int = 0,
    ) -> PlanAnswer:
        number = self.start_plan(topics, offsets, limit=limit, wait=wait, messages=messages)
        return self.planned(number)


def sections(bodies: dict[tuple[str, int], list[bytes]]) -> bytes:
    return encode_sections(
        StagedSection(topic, queue, len(each), bytes(encode_records(topic, queue, each).data))
        for (topic, queue), each in bodies.items()
    )


def carried_part(
    bodies: dict[tuple[str, int], list[bytes]], *, partition: int = 0, records: int | None = None
) -> StagedPart:
    return StagedPart(
        stage=0,
        partition=partition,
        attempt=0,
        chunks=0,
        records=sum(map(len, bodies.values())) if records is None else records,
        sections=sections(bodies),
    )


def staged_part(
    *, partition: int = 0, attempt: int = 0, chunks: int = 1, records: int = 1
) -> StagedPart:
    return StagedPart(stage=0, partition=partition, attempt=attempt, chunks=chunks, records=records)
