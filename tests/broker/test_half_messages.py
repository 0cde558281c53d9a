"""Half messages through a whole broker: commit, rollback, check-back, crashes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker, spawn_broker
from headrace.broker.core import Core
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import decode_offset_id
from tests.broker.wire import Wire
from tests.java.clients import Java, Verdict

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
SLOW = BrokerSettings(transaction_timeout=timedelta(hours=1))
FAST = BrokerSettings(
    transaction_timeout=timedelta(milliseconds=100),
    transaction_check_interval=timedelta(milliseconds=100),
    transaction_max_checks=3,
)
HALF, MARKS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
_ids = itertools.count()


def running(folder: Path, settings: BrokerSettings) -> Iterator[Wire]:
    with EmbeddedBroker(folder, settings=settings) as broker, Wire(broker.address) as connected:
        connected.create("t", queues=3)
        yield connected


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    yield from running(tmp_path / "data", SLOW)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Wire]:
    yield from running(tmp_path / "data", FAST)


def prepare(
    wire: Wire, body: bytes = b"x", queue: int = 1, *, more: str = "", group: str = "p"
) -> Command:
    """Send a half message."""
    uniq = f"{next(_ids):032X}"
    properties = f"UNIQ_KEY\1{uniq}\2KEYS\1k\2TRAN_MSG\1true\2PGROUP\1{group}\2{more}"
    sent = wire.put("t", body, queue, i=properties, f=4)
    assert sent.code == 0, sent.remark
    return sent


def ending(half: Command, how: int = COMMIT, **more: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "producerGroup": "p",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": decode_offset_id(half.ext["msgId"])[1],
        "commitOrRollback": how,
        "fromTransactionCheck": "false",
        "msgId": half.ext["transactionId"],
    }
    return fields | more


def end(wire: Wire, half: Command, how: int = COMMIT, **more: object) -> Command:
    return wire.ask(RequestCode.END_TRANSACTION, **ending(half, how, **more))


def held(wire: Wire, topic: str = "t", queue: int = 1) -> list[StoredMessage]:
    answer = wire.pull(topic, queue, 0, maxMsgNums=10_000)
    return decode_messages(answer.payload) if answer.code == 0 else []


def beat(wire: Wire, client: str = "c", group: str = "p") -> None:
    """Be a producer of a group."""
    body = f'{{"clientID":"{client}","producerDataSet":[{{"groupName":"{group}"}}]}}'
    assert wire.ask(RequestCode.HEART_BEAT, body.encode()).code == 0


def asked(wire: Wire, count: int = 1) -> list[Command]:
    """Wait until the broker has asked so often."""

    def questions() -> list[Command]:
        return [each for each in wire.told if each.code == RequestCode.CHECK_TRANSACTION_STATE]

    while len(questions()) < count:
        wire.read()
    return questions()


def poll_until(done: Callable[[], bool], patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_a_half_message_is_nowhere_until_it_is_committed(wire: Wire) -> None:
    half = prepare(wire, b"to be", 1, more="TAGS\1red\2")
    assert half.ext["queueId"] == "1"
    assert held(wire) == []
    (kept,) = held(wire, HALF, 0)
    assert kept.sys_flag & 12 == 0
    real = {name: kept.properties[name] for name in ("REAL_TOPIC", "REAL_QID")}
    assert real == {"REAL_TOPIC": "t", "REAL_QID": "1"}
    assert kept.properties["__transactionId__"] == half.ext["transactionId"]
    assert (kept.queue_offset, kept.position) == (0, decode_offset_id(half.ext["msgId"])[1])

    assert end(wire, half).code == 0
    (message,) = held(wire)
    assert (message.body, message.tags, message.keys) == (b"to be", "red", "k")
    assert message.sys_flag & 12 == COMMIT
    assert message.prepared_offset == kept.position
    assert message.unique_key == half.ext["transactionId"]
    assert not {"REAL_TOPIC", "REAL_QID", "TRAN_MSG"} & message.properties.keys()
    assert (message.born, message.flag) == (1234, 7)


def test_a_rolled_back_message_never_comes(wire: Wire) -> None:
    half = prepare(wire)
    assert end(wire, half, ROLLBACK).code == 0
    assert end(wire, half, ROLLBACK).code == 0
    assert held(wire) == []
    (mark,) = held(wire, MARKS, 0)
    assert (mark.body, mark.tags) == (b"0,", "d")
    contrary = end(wire, half, COMMIT)
    assert contrary.code == 4
    assert "ended before: rollback" in str(contrary.remark)
    assert held(wire) == []


def test_a_repeated_commit_changes_nothing(wire: Wire) -> None:
    half = prepare(wire)
    numbers = [wire.send(RequestCode.END_TRANSACTION, **ending(half)) for _ in range(5)]
    wire.send_oneway(RequestCode.END_TRANSACTION, **ending(half))
    assert [wire.receive(number).code for number in numbers] == [0] * 5
    assert end(wire, half).code == 0
    assert end(wire, half, UNKNOWN).code == 0
    assert len(held(wire)) == 1


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": 1}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 5}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_must_name_the_group_and_both_offsets(
    wire: Wire, wrong: dict[str, object], remark: str
) -> None:
    half = prepare(wire)
    refused = end(wire, half, COMMIT, **wrong)
    assert refused.code == 1
    assert remark in str(refused.remark)
    ordinary = wire.put("t", b"y", 1)
    position = decode_offset_id(ordinary.ext["msgId"])[1]
    assert end(wire, half, COMMIT, commitLogOffset=position).code == 1
    assert [message.body for message in held(wire)] == [b"y"]


@pytest.mark.parametrize("delay", ["DELAY\0013\2", "TIMER_DELAY_SEC\0015\2"])
def test_a_half_message_cannot_be_delayed(wire: Wire, delay: str) -> None:
    refused = wire.put("t", b"x", i=f"TRAN_MSG\1true\2PGROUP\1p\2{delay}", f=4)
    assert refused.code == 13
    assert "a transaction cannot be delayed" in str(refused.remark)
    assert wire.put("t", b"x", i="TRAN_MSG\1true\2").code == 13
    assert wire.put(HALF, b"x").code == 16


def test_many_half_messages_end_in_one_go(wire: Wire) -> None:
    halves = [prepare(wire, b"%d" % number) for number in range(100)]
    numbers = [
        wire.send(RequestCode.END_TRANSACTION, **ending(half, ROLLBACK if n % 3 else COMMIT))
        for n, half in enumerate(halves)
    ]
    assert {wire.receive(number).code for number in numbers} == {0}
    bodies = [int(message.body) for message in held(wire)]
    assert sorted(bodies) == [number for number in range(100) if number % 3 == 0]
    assert len(held(wire, MARKS, 0)) < 100


def test_a_producer_that_said_nothing_is_asked(asking: Wire) -> None:
    beat(asking)
    half = prepare(asking, b"x", 2)
    (question,) = asked(asking)
    wanted = {
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(decode_offset_id(half.ext["msgId"])[1]),
        "msgId": half.ext["transactionId"],
        "transactionId": half.ext["transactionId"],
        "offsetMsgId": half.ext["msgId"],
        "topic": "t",
        "bname": "broker-a",
    }
    assert question.ext == wanted
    assert question.is_oneway
    (message,) = decode_messages(question.payload)
    assert (message.topic, message.queue_id, message.body) == ("t", 2, b"x")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert (message.offset_id, message.queue_offset) == (half.ext["msgId"], 0)
    asking.send_oneway(
        RequestCode.END_TRANSACTION, **ending(half, COMMIT, fromTransactionCheck="true")
    )
    poll_until(lambda: len(held(asking, queue=2)) == 1)


def test_another_producer_of_the_group_answers_for_one_that_died(
    tmp_path: Path,
) -> None:
    with EmbeddedBroker(tmp_path, settings=FAST) as broker:
        with Wire(broker.address) as dying:
            dying.create("t", queues=3)
            beat(dying, "dying")
            half = prepare(dying)
        with Wire(broker.address) as other, Wire(broker.address) as stranger:
            beat(other, "other")
            beat(stranger, "stranger", "q")
            asked(other)
            assert end(other, half, COMMIT, fromTransactionCheck="true").code == 0
            assert len(held(other)) == 1
            assert stranger.told == []


def test_nobody_answers_and_the_message_is_put_aside(asking: Wire) -> None:
    beat(asking)
    half = prepare(asking)
    times = [
        decode_messages(each.payload)[0].properties["TRANSACTION_CHECK_TIMES"]
        for each in asked(asking, 3)
    ]
    assert times == ["1", "2", "3"]
    poll_until(lambda: len(held(asking, DISCARDED, 0)) == 1)
    (message,) = held(asking, DISCARDED, 0)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert message.properties["REAL_TOPIC"] == "t"
    assert end(asking, half, COMMIT, fromTransactionCheck="true").code == 4
    assert held(asking) == []


def test_a_message_can_ask_for_more_time_and_then_only_an_answer_counts(asking: Wire) -> None:
    beat(asking)
    half = prepare(asking, more="CHECK_IMMUNITY_TIME_IN_SECONDS\0011\2")
    begin = time.monotonic()
    # Its born time is long ago: what comes unasked comes too late.
    assert end(asking, half).code == 604
    asked(asking)
    assert time.monotonic() - begin > 0.8
    assert end(asking, half, COMMIT, fromTransactionCheck="true").code == 0
    assert len(held(asking)) == 1


def test_open_half_messages_and_their_checks_survive_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = timedelta(minutes=1)
    slow = replace(FAST, transaction_check_interval=interval)
    with EmbeddedBroker(tmp_path, settings=slow) as broker, Wire(broker.address) as wire:
        wire.create("t", queues=3)
        beat(wire)
        halves = [prepare(wire, b"%d" % number) for number in range(3)]
        asked(wire, 3)
        assert end(wire, halves[1]).code == 0
    with EmbeddedBroker(tmp_path, settings=slow) as broker, Wire(broker.address) as wire:
        assert [message.body for message in held(wire)] == [b"1"]
    with EmbeddedBroker(tmp_path, settings=slow) as broker, Wire(broker.address) as wire:
        for round_ in (1, 2):
            beat(wire)
            move_clock(monkeypatch, round_ * interval)
            asked(wire, 2 * round_)
        numbers = {each.ext["tranStateTableOffset"] for each in asked(wire, 4)}
        assert numbers == {"0", "2"}
        counts = [
            decode_messages(each.payload)[0].properties["TRANSACTION_CHECK_TIMES"]
            for each in asked(wire, 4)
        ]
        assert counts == ["2", "2", "3", "3"]
        assert end(wire, halves[1]).code == 0
        assert end(wire, halves[2], COMMIT, fromTransactionCheck="true").code == 0
        assert [message.body for message in held(wire)] == [b"1", b"2"]


def move_clock(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Have brokers of this process live so much later."""
    more = by / timedelta(milliseconds=1)
    monkeypatch.setattr(Core, "now", staticmethod(lambda: int(time.time() * 1000 + more)))


KILLS = ("middle=kill", "end=kill:3", "synced=kill:2", "synced=kill:5")


def end_all(wire: Wire, halves: list[Command]) -> None:
    for number, half in enumerate(halves):
        assert end(wire, half, ROLLBACK if number == 1 else COMMIT).code == 0


@pytest.mark.parametrize("failpoint", KILLS)
def test_a_kill_at_any_point_of_a_commit_neither_loses_nor_doubles(
    tmp_path: Path, failpoint: str
) -> None:
    with spawn_broker(
        tmp_path, environment={ENVIRONMENT_VARIABLE: f"store.unit.{failpoint}"}
    ) as broker:
        with Wire(broker.address) as wire:
            wire.create("t", queues=3)
            halves = [prepare(wire, b"%d" % number) for number in range(5)]
            with pytest.raises(ConnectionError):
                end_all(wire, halves)
        broker.process.wait(10)
    with EmbeddedBroker(tmp_path, settings=SLOW) as again, Wire(again.address) as wire:
        end_all(wire, halves)
        assert [message.body for message in held(wire)] == [b"0", b"2", b"3", b"4"]


@pytest.mark.rocketmq
class TestJavaProducers:
    """RocketMQ's own transaction producer on the embedded broker."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker(
            tmp_path / "java", settings=replace(FAST, transaction_max_checks=100)
        ) as b:
            with Wire(b.address) as wire:
                wire.create("t", queues=1)
            yield b

    def bodies(self, broker: EmbeddedBroker) -> list[bytes]:
        with Wire(broker.address) as wire:
            return [message.body for message in held(wire, queue=0)]

    def test_its_word_counts(self, broker: EmbeddedBroker, java: Java) -> None:
        verdicts: tuple[Verdict, Verdict] = ("ROLLBACK_MESSAGE", "COMMIT_MESSAGE")
        for local in verdicts:
            with java.transaction_producer(broker.address, local=local) as producer:
                (sent,) = producer.send("t", local.encode(), how="transaction")
                assert sent.transaction_id == sent.msg_id
                poll_until(lambda: not broker.statistics().open_transactions)
        assert self.bodies(broker) == [b"COMMIT_MESSAGE"]

    def test_one_that_does_not_know_is_asked_until_it_does(
        self, broker: EmbeddedBroker, java: Java
    ) -> None:
        checks: tuple[Verdict, Verdict] = ("UNKNOW", "COMMIT_MESSAGE")
        with java.transaction_producer(broker.address, local="UNKNOW", checks=checks) as producer:
            producer.send("t", b"x", how="transaction")
            poll_until(lambda: self.bodies(broker) == [b"x"])
            assert len(producer.checks()) == 2

    def test_another_of_its_group_answers_when_it_died(
        self, broker: EmbeddedBroker, java: Java
    ) -> None:
        start = partial(java.transaction_producer, broker.address, "pair")
        with start() as second:
            # The broker hears of a producer when it sends for the first time.
            second.send("t", b"y", how="transaction")
            first = start(local="UNKNOW", checks=("UNKNOW",))
            first.send("t", b"x", how="transaction")
            first.kill()
            poll_until(lambda: sorted(self.bodies(broker)) == [b"x", b"y"])
            assert b"x" in [message.body for message in second.checks()]
