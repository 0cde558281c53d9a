"""What is mutated: real frames, bodies and blocks of every kind that comes from outside."""

from __future__ import annotations

import struct
import zlib
from functools import cache

import msgspec
import pyarrow as pa

from headrace.protocol.codes import RequestCode, SysFlag
from headrace.protocol.frames import Command, encode
from headrace.protocol.messages import Message, encode_batch
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import (
    CommitRecord,
    CommitRequest,
    OpenRequest,
    PlanRequest,
    StagedPart,
    StagedSection,
    encode_sections,
)

__all__ = [
    "acl_files",
    "batches",
    "bodies",
    "change_files",
    "commits",
    "compressed",
    "frames",
    "job_bodies",
    "properties",
    "records",
    "requests",
    "rest_requests",
    "sections",
    "state_lines",
    "texts",
]

_SEND = {
    "a": "producers",
    "b": "lines",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "7",
    "i": "UNIQ_KEY\x010A00\x02TAGS\x01red\x02KEYS\x01k1 k2\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
}
_PULL = {
    "consumerGroup": "readers",
    "topic": "lines",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "red || blue",
    "expressionType": "TAG",
    "subVersion": "0",
}


def properties() -> list[bytes]:
    """Properties strings."""
    return [
        _SEND["i"].encode(),
        b"KEYS\x01k\x02TAGS\x01red\x02KEYS\x01last\x02EMPTY\x01\x02\x01x\x02",
        "ключ\x01значение\x02".encode(),
        b"",
    ]


@cache
def bodies() -> list[bytes]:
    """JSON bodies, strict and as fastjson writes them."""
    subscription = {"topic": "lines", "subString": "red || blue", "tagsSet": ["red", "blue"]}
    consumer = {
        "groupName": "readers",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": [subscription | {"codeSet": [112785], "subVersion": 17}],
    }
    heartbeat = {
        "clientID": "10.0.0.1@1#2",
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": "producers"}],
        "heartbeatFingerprint": 0,
    }
    queue = {"topic": "lines", "brokerName": "broker-a", "queueId": 1}
    return [
        msgspec.json.encode(heartbeat),
        msgspec.json.encode({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}),
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"b"}}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}',
        b"{'single':'quotes',\"list\":[1,-2.5e3,true,null,NaN,],}",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"lines":{"topicName":"lines"}}}}',
        b'[{"$ref":"$"},{"@type":"java.util.HashMap"}]',
    ]


@cache
def job_bodies() -> list[bytes]:
    """JSON bodies of Headrace's own requests."""
    record = CommitRecord(
        job="job",
        kind="commit",
        epoch=1,
        batch=1,
        offsets={"lines@broker-a@0": 3},
        watermarks={"lines@broker-a@0": 9},
        lineage=[[1, 1]],
    )
    part = StagedPart(stage=0, partition=0, attempt=0, chunks=1, records=2)
    commit = CommitRequest(
        commit_topic="job-commitTopic", group="job", previous=0, parts=[part], record=record
    )
    plan = PlanRequest(
        job="job", commit_topic="job-commitTopic", topics=["lines"], offsets=record.offsets
    )
    opened = OpenRequest(job="job", commit_topic="job-commitTopic", driver="host:1")
    return [msgspec.json.encode(each) for each in (opened, commit, plan)]


@cache
def records() -> list[bytes]:
    """Stored messages, as a pull gives them."""
    bodies = [b"to be", b"", b"x" * 300]
    names = properties()[:3]
    plain = bytes(encode_records("lines", 1, bodies, names, 1_700_000_000_000).data)
    even = bytes(encode_records("t", 0, [b"abc"] * 40, [b"TAGS\x01red\x02"] * 40).data)
    packed = bytearray(encode_records("lines", 0, [zlib.compress(b"water " * 50)]).data)
    struct.pack_into(">i", packed, 36, int(SysFlag.COMPRESSED | SysFlag.ZLIB))
    wide = bytes(encode_records("l" * 200, 0, [b"long name"]).data)
    return [plain, even, bytes(packed), wide, plain + wide]


@cache
def batches() -> list[bytes]:
    """Batches as producers send them."""
    messages = [
        Message(topic="lines", body=b"a" * size, tags="red", keys="k") for size in (0, 5, 400)
    ]
    return [encode_batch(messages), encode_batch(messages[:1]), encode_batch(messages * 20)]


@cache
def sections() -> list[bytes]:
    """Bodies of STAGE."""
    one = encode_records("lines", 0, [b"a", b"b"], [b"TAGS\x01red\x02", b"KEYS\x01k\x02"])
    many = encode_records("lines", 1, [b"x" * 20] * 40)
    first = StagedSection("lines", 0, 2, bytes(one.data))
    second = StagedSection("lines", 1, 40, bytes(many.data))
    return [encode_sections([first]), encode_sections([first, second])]


def compressed() -> list[bytes]:
    """Compressed bodies, one of them a bomb."""
    import pyarrow as pa

    text = b"water " * 200
    bomb = zlib.compress(bytes(70_000_000), 9)
    packed = [zlib.compress(text), bomb]
    for codec in ("lz4", "zstd"):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(text)
        packed.append(sink.getvalue().to_pybytes())
    return packed


def texts() -> list[bytes]:
    """Texts in fields: attributes, ids, subscriptions, numbers."""
    return [
        b"+cleanup.policy=COMPACTION,+message.type=NORMAL",
        b"-cleanup.policy,+queue.type=BatchCQ",
        b"7F00000100002A9F0000000000000B00",
        b"red || blue || *",
        b"9223372036854775807",
        b"PUB|SUB",
    ]


def acl_files() -> list[bytes]:
    """Access rules."""
    first = b"globalWhiteRemoteAddresses:\n- 10.0.0.{1,2}\naccounts:\n- accessKey: a\n"
    return [first + b"  secretKey: s\n  admin: false\n  topicPerms: [t=PUB|SUB, j-*=DENY]\n"]


@cache
def requests() -> list[Command]:
    """Requests of every kind with a body of its own."""
    heartbeat, lock = bodies()[:2]
    opened, commit, plan = job_bodies()
    stage = {
        "job": "job",
        "epoch": "1",
        "batch": "1",
        "stage": "0",
        "partition": "0",
        "attempt": "0",
        "chunk": "0",
    }
    place = {"topic": "lines", "queueId": "0", "consumerGroup": "readers"}
    code = RequestCode
    return [
        Command(code.SEND_MESSAGE_V2, _SEND, b"to be or not"),
        Command(code.SEND_BATCH_MESSAGE, _SEND | {"m": "true"}, batches()[0]),
        Command(code.PULL_MESSAGE, _PULL),
        Command(code.LITE_PULL_MESSAGE, _PULL | {"queueOffset": "5"}),
        Command(code.HEART_BEAT, {}, heartbeat),
        Command(code.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "readers"}),
        Command(code.LOCK_BATCH_MQ, {}, lock),
        Command(code.UNLOCK_BATCH_MQ, {}, lock),
        Command(code.QUERY_CONSUMER_OFFSET, place),
        Command(code.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": "1"}),
        Command(code.SEARCH_OFFSET_BY_TIMESTAMP, place | {"timestamp": "0"}),
        Command(code.GET_MAX_OFFSET, place),
        Command(code.GET_EARLIEST_MSG_STORETIME, place),
        Command(code.GET_ROUTEINFO_BY_TOPIC, {"topic": "lines"}),
        Command(code.GET_TOPIC_STATS_INFO, {"topic": "lines"}),
        Command(code.GET_CONSUME_STATS, {"consumerGroup": "readers", "topic": "lines"}),
        Command(code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"}),
        Command(code.VIEW_MESSAGE_BY_ID, {"offset": "0", "topic": "lines"}),
        Command(
            code.QUERY_MESSAGE,
            {
                "topic": "lines",
                "key": "k1",
                "maxNum": "32",
                "beginTimestamp": "0",
                "endTimestamp": "9999999999999",
            },
        ),
        Command(
            code.CONSUMER_SEND_MSG_BACK,
            {"offset": "0", "group": "readers", "delayLevel": "0", "originTopic": "lines"},
        ),
        Command(
            code.END_TRANSACTION,
            {
                "producerGroup": "producers",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "commitOrRollback": "8",
                "fromTransactionCheck": "false",
                "msgId": "x",
                "topic": "lines",
            },
        ),
        Command(
            code.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "lines", "group": "readers", "timestamp": "-1", "isForce": "true"},
        ),
        Command(
            code.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": "made",
                "defaultTopic": "TBW102",
                "readQueueNums": "2",
                "writeQueueNums": "2",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
                "attributes": "+cleanup.policy=DELETE",
            },
        ),
        Command(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"readers"}'),
        Command(code.OPEN_JOB, {}, opened),
        Command(code.STAGE, stage, sections()[0]),
        Command(code.COMMIT_BATCH, {}, commit),
        Command(code.PLAN_BATCH, {}, plan),
    ]


def _binary(command: Command) -> bytes:
    """Write a command with the binary kind of header."""
    fields = b"".join(
        struct.pack(">h", len(key.encode()))
        + key.encode()
        + struct.pack(">i", len(value.encode()))
        + value.encode()
        for key, value in command.ext.items()
    )
    head = struct.pack(">hBhii", command.code % 32_768, 0, 479, 5, 0)
    header = head + struct.pack(">i", 0) + struct.pack(">i", len(fields)) + fields
    body = bytes(command.payload)
    return struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


@cache
def frames() -> list[bytes]:
    """Whole frames of both kinds, also several in a row."""
    written = [b"".join(encode(command)) for command in requests()]
    loose = b'{"code":105,"extFields":{"topic":7,"x":null,"y":true},"flag":0,"language":"ZIG"}'
    odd = struct.pack(">iI", 4 + len(loose), len(loose)) + loose
    return [
        *written,
        *(_binary(command) for command in requests()[:6]),
        odd,
        b"".join(written[8:14]),
    ]


def commits() -> list[bytes]:
    """Records of a commit topic."""
    record = CommitRecord(
        job="job",
        kind="commit",
        epoch=2,
        batch=7,
        offsets={"lines@broker-a@0": 17, "lines@broker-a@1": 4},
    )
    properties = b"KEYS\x012-commit\x02HEADRACE_DRIVER\x01host:1\x02HEADRACE_OWNER\x01app\x02"
    bodies = [msgspec.json.encode(record), msgspec.json.encode(record)[:40]]
    return [
        bytes(encode_records("job-commitTopic", 0, [body], [properties], 5).data)
        for body in bodies[:1]
    ]


def state_lines() -> list[bytes]:
    """What ``headrace state export`` writes."""
    return [
        b'{"key":"c2JlZQ==","value":"aQM="}\n{"key":"c3Rv","value":""}\n',
        b'{"key":"","value":"AAAA"}',
    ]


def change_files() -> list[bytes]:
    """Changes of a state that a task has left for the next."""
    batch = pa.record_batch(
        {"key": pa.array([b"a", b"b"], pa.binary()), "value": pa.array([b"1", None], pa.binary())},
        metadata={b"base": b"base", b"content": b"content"},
    )
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, batch.schema) as writer:
        writer.write_batch(batch)
    changed = content.getvalue().to_pybytes()
    return [zlib.crc32(changed).to_bytes(4, "big") + changed]


def rest_requests() -> list[bytes]:
    """Requests to a Connect worker, as they come over a connection."""
    config = b'{"connector.class":"x.Y","tasks.max":2,"topics":"t","errors.tolerance":"all"}'
    offsets = b'{"offsets":[{"partition":{"file":"a"},"offset":{"line":3}}]}'
    asked = [
        (b"GET / HTTP/1.1", b""),
        (b"GET /connectors?expand=status&expand=info HTTP/1.1", b""),
        (b"POST /connectors HTTP/1.1", b'{"name":"a","config":' + config + b"}"),
        (b"PUT /connectors/a/config HTTP/1.1", config),
        (b"PATCH /connectors/a/config HTTP/1.1", b'{"tasks.max":null}'),
        (b"PATCH /connectors/a/offsets HTTP/1.1", offsets),
        (b"GET /connectors/a/status HTTP/1.1", b""),
        (b"POST /connectors/a/restart?includeTasks=true&onlyFailed=false HTTP/1.1", b""),
        (b"PUT /connector-plugins/x.Y/config/validate HTTP/1.1", config),
        (b"PUT /admin/loggers/root HTTP/1.1", b'{"level":"INFO"}'),
        (b"DELETE /connectors/a HTTP/1.1", b""),
        (b"OPTIONS /connectors HTTP/1.1", b""),
    ]
    head = b"\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return [line + head + b"Content-Length: %d\r\n\r\n" % len(body) + body for line, body in asked]
