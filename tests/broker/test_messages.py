from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.half_messages.book import read_halves
from headrace.protocol.codes import RequestCode, ResponseCode, SysFlag
from headrace.protocol.frames import Command
from headrace.protocol.messages import Message, StoredMessage, decode_messages
from headrace.protocol.properties import decode_offset_id
from headrace.protocol.records import RecordFields, encode_record
from tests.broker.wire import JobWire, Wire


def messages(answer: Command) -> list[StoredMessage]:
    assert answer.code == 0, answer.remark
    return decode_messages(answer.payload)


def ends(answer: Command) -> tuple[int, str | None, int]:
    return answer.code, answer.remark, int(answer.ext["nextBeginOffset"])


def test_message_comes_back_as_it_was_sent(wire: JobWire) -> None:
    wire.create("t")
    sent = wire.put("t", b"to be", 1, i="KEYS\1k\2", j=3)
    [message] = messages(wire.pull("t", 1))
    assert (message.body, message.keys, message.queue_id) == (b"to be", "k", 1)
    assert (message.born, message.flag, message.reconsume_times) == (1234, 7, 3)
    assert (sent.ext["queueId"], sent.ext["queueOffset"]) == ("1", "0")
    assert sent.ext["transactionId"] == message.unique_key


def test_long_names_of_fields_do_as_well(wire: JobWire) -> None:
    wire.create("t")
    sent = wire.ask(
        RequestCode.SEND_MESSAGE,
        b"x",
        producerGroup="p",
        topic="t",
        defaultTopic="TBW102",
        defaultTopicQueueNums=4,
        queueId=0,
        sysFlag=0,
        bornTimestamp=5,
        flag=0,
        properties="UNIQ_KEY\1mine\2",
    )
    assert sent.ext["transactionId"] == "mine"
    assert messages(wire.pull("t"))[0].unique_key == "mine"


def test_batch_keeps_order_and_each_messages_own_properties(wire: JobWire) -> None:
    wire.create("t")
    wire.put("t", b"before")
    batch = [Message(topic="t", body=b"%d" % n, keys=f"k{n}") for n in range(100)]
    sent = wire.put_batch("t", batch)
    assert sent.ext["queueOffset"] == "1"
    got = messages(wire.pull("t", maxMsgNums=1000))[1:]
    assert [(m.body, m.keys, m.queue_offset) for m in got] == [
        (b"%d" % n, f"k{n}", n + 1) for n in range(100)
    ]
    ids = sent.ext["msgId"].split(",")
    assert ids == [message.offset_id for message in got]


def test_message_is_found_by_the_id_that_its_sender_got(wire: JobWire) -> None:
    wire.create("t")
    sent = wire.put("t", b"x")
    host, position = decode_offset_id(sent.ext["msgId"])
    assert host[0] == "127.0.0.1"
    answer = wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=position)
    assert messages(answer)[0].body == b"x"
    nowhere = wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=position + 1)
    assert nowhere.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("unique", [False, True])
def test_messages_are_found_by_key(wire: JobWire, unique: bool) -> None:
    wire.create("t")
    for number in range(3):
        wire.put("t", b"%d" % number, number % 2, i=f"KEYS\1a k{number}\2UNIQ_KEY\1u{number}\2")
    answer = wire.ask(
        RequestCode.QUERY_MESSAGE,
        topic="t",
        key="u2" if unique else "k2",
        maxNum=10,
        beginTimestamp=0,
        endTimestamp=2**62,
        _UNIQUE_KEY_QUERY=str(unique).lower(),
    )
    assert [message.body for message in messages(answer)] == [b"2"]


def test_first_message_creates_the_topic(wire: JobWire) -> None:
    assert wire.put("new", b"x", c="TBW102", d=3).code == 0
    answer = wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="new")
    assert b'"writeQueueNums":3' in bytes(answer.payload)


def test_broker_picks_a_queue_when_asked_to(wire: JobWire) -> None:
    wire.create("t", queues=3)
    assert int(wire.put("t", b"x", -1).ext["queueId"]) in range(3)


@pytest.mark.parametrize(
    ("topic", "fields", "code", "remark"),
    [
        ("missing", {}, ResponseCode.TOPIC_NOT_EXIST, "topic 'missing' does not exist"),
        ("read-only", {}, ResponseCode.NO_PERMISSION, "read-only"),
        ("t", {"e": 2}, ResponseCode.INVALID_PARAMETER, "has 2 queues"),
        ("t", {"e": "two"}, ResponseCode.INVALID_PARAMETER, "no integer"),
        ("t", {"i": "K\1" + "x" * 32_767 + "\2"}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ("t", {"i": "TIMER_DELAY_MS\1soon\2"}, ResponseCode.MESSAGE_ILLEGAL, "no integer"),
        ("t", {"i": "TIMER_DELAY_SEC\001259201\2"}, ResponseCode.MESSAGE_ILLEGAL, "259200000 ms"),
        ("t", {"i": "DELAY\0013\2", "m": "true"}, ResponseCode.MESSAGE_ILLEGAL, "only single"),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION, "the broker's own"),
        ("t", {"i": "TRAN_MSG\1true\2"}, ResponseCode.MESSAGE_ILLEGAL, "PGROUP"),
        ("compact", {}, ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing"),
    ],
)
def test_message_is_refused_with_the_reason(
    wire: JobWire, topic: str, fields: dict[str, object], code: int, remark: str
) -> None:
    wire.create("t")
    wire.create("read-only", perm=4)
    wire.create("compact", attributes="+cleanup.policy=COMPACTION")
    answer = wire.put(topic, b"x", **fields)
    assert answer.code == code
    assert remark in (answer.remark or "")


def test_message_that_is_too_large_is_refused_with_size_and_limit(tmp_path: Path) -> None:
    settings = BrokerSettings(max_message_size=1000)
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Wire(broker.address) as wire:
        wire.create("t")
        assert wire.put("t", b"x" * 1000).code == 0
        answer = wire.put("t", b"x" * 1001)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "1001 bytes" in (answer.remark or "")
        assert "limit is 1000 bytes" in (answer.remark or "")


def test_compaction_topic_takes_messages_with_keys(wire: JobWire) -> None:
    wire.create("compact", attributes="+cleanup.policy=COMPACTION")
    assert wire.put("compact", b"x", i="KEYS\1k\2").code == 0
    mixed = [Message(topic="t", body=b"x", keys="k"), Message(topic="t", body=b"y")]
    assert wire.put_batch("compact", mixed).code == ResponseCode.MESSAGE_ILLEGAL


def test_pull_answers_where_to_go_on(wire: JobWire) -> None:
    wire.create("t")
    assert ends(wire.pull("t")) == (19, "NO_MESSAGE_IN_QUEUE", 0)
    assert ends(wire.pull("t", 0, 5)) == (21, "NO_MESSAGE_IN_QUEUE", 0)
    for _ in range(3):
        wire.put("t", b"x")
    assert ends(wire.pull("t", 0, 1, maxMsgNums=1)) == (0, "FOUND", 2)
    assert ends(wire.pull("t", 0, 3)) == (19, "OFFSET_OVERFLOW_ONE", 3)
    assert ends(wire.pull("t", 0, 4)) == (21, "OFFSET_OVERFLOW_BADLY", 3)
    assert ends(wire.pull("t", subscription="red")) == (20, "NO_MATCHED_MESSAGE", 3)
    answer = wire.pull("t", 0, 1)
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "3")
    assert answer.ext["suggestWhichBrokerId"] == "0"


def test_pull_gives_messages_of_the_wanted_tags(wire: JobWire) -> None:
    wire.create("t")
    for tag in ("red", "green", "blue", "red"):
        wire.put("t", tag.encode(), i=f"TAGS\1{tag}\2")
    got = messages(wire.pull("t", subscription="red || blue"))
    assert [message.body for message in got] == [b"red", b"blue", b"red"]


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("missing", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("write-only", {}, ResponseCode.NO_PERMISSION),
        ("t", {"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ("t", {"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ("t", {"expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_pull_is_refused_with_the_reason(
    wire: JobWire, topic: str, fields: dict[str, object], code: int
) -> None:
    wire.create("t")
    wire.create("write-only", perm=2)
    assert wire.pull(topic, **fields).code == code


def test_waiting_pull_wakes_on_arrival(wire: JobWire, broker: EmbeddedBroker) -> None:
    wire.create("t")
    number = wire.start_pull("t", sysFlag=6, suspendTimeoutMillis=20_000)
    with Wire(broker.address) as other:
        other.put("t", b"elsewhere", 1)
        begin = time.monotonic()
        other.put("t", b"x", 0)
    assert messages(wire.receive(number))[0].body == b"x"
    assert time.monotonic() - begin < 2
    assert broker.statistics().waiting == 0


def test_waiting_pull_ends_when_its_time_is_up(wire: JobWire) -> None:
    wire.create("t")
    answer = wire.pull("t", sysFlag=6, suspendTimeoutMillis=50)
    assert ends(answer) == (19, "NO_MESSAGE_IN_QUEUE", 0)


def test_waiting_pull_of_a_closed_connection_is_dropped(
    wire: JobWire, broker: EmbeddedBroker
) -> None:
    wire.create("t")
    with Wire(broker.address) as other:
        other.start_pull("t", sysFlag=6, suspendTimeoutMillis=60_000)
        other.ask(RequestCode.HEADRACE_CAPABILITIES)
        assert broker.statistics().waiting == 1
    deadline = time.monotonic() + 10
    while broker.statistics().waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    assert broker.statistics().waiting == 0


def test_one_answer_holds_at_most_what_the_settings_say(tmp_path: Path) -> None:
    settings = BrokerSettings(max_pull_size=1000)
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Wire(broker.address) as wire:
        wire.create("t")
        for _ in range(5):
            wire.put("t", b"x" * 300)
        answer = wire.pull("t", maxMsgBytes=2**31 - 1)
        assert 0 < len(answer.payload) <= 1000


def test_many_sends_in_flight_are_answered_each(wire: JobWire) -> None:
    wire.create("t")
    numbers = [wire.start_put("t", b"%d" % n) for n in range(300)]
    offsets = [int(wire.receive(number).ext["queueOffset"]) for number in numbers]
    assert offsets == list(range(300))


def test_messages_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("t", queues=3)
        wire.put("t", b"x", 2)
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        assert messages(wire.pull("t", 2))[0].body == b"x"
        assert wire.put("t", b"y", 2).ext["queueOffset"] == "1"


def test_body_that_cannot_be_unpacked_keeps_nothing_else_from_being_delivered(
    wire: JobWire,
) -> None:
    # Found by fuzzing: it kept every delayed and every half message behind it waiting.
    wire.create("t", queues=1)
    unpackable = int(SysFlag.COMPRESSED | SysFlag.ZLIB)
    for flag, body in ((unpackable, b"no zlib"), (0, b"plain")):
        answer = wire.put("t", body, f=flag, i="TIMER_DELAY_MS\x0110\x02")
        assert answer.code == 0, answer.remark
    bodies: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(bodies) < 2:
        assert time.monotonic() < deadline
        answer = wire.pull("t", 0, len(bodies), sysFlag=6, suspendTimeoutMillis=1000)
        if answer.code == 0:
            bodies += [m.body for m in decode_messages(answer.payload, unpack=False)]
    assert bodies == [b"no zlib", b"plain"]
    half = encode_record("t", b"no zlib", b"PGROUP\x01p\x02", RecordFields(sys_flag=unpackable))
    assert len(read_halves(half.data, 1000)) == 1


def test_what_is_sent_behind_a_long_batch_is_stored_behind_it(wire: Wire) -> None:
    wire.create("lines", queues=1)
    wire.create("others", queues=1)
    long = [Message(topic="lines", body=b"x")] * 20_000
    first, small = wire.start_batch("lines", long), wire.start_put("lines", b"small")
    second, last = wire.start_batch("lines", long), wire.start_put("lines", b"last")
    other = wire.start_put("others", b"other")
    offsets = [
        int(wire.receive(number).ext["queueOffset"]) for number in (first, small, second, last)
    ]
    assert offsets == [0, 20_000, 20_001, 40_001]
    assert wire.receive(other).code == 0


def test_a_topic_may_be_deleted_while_a_long_batch_for_it_is_cut(wire: Wire) -> None:
    wire.create("lines", queues=1)
    number = wire.start_batch("lines", [Message(topic="lines", body=b"x")] * 20_000)
    assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="lines").code == 0
    assert wire.receive(number).code in {0, ResponseCode.TOPIC_NOT_EXIST}
    wire.create("lines", queues=1)
    assert wire.put("lines", b"again").code == 0
