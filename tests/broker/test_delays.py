"""Messages that wait, through a whole broker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker, spawn_broker
from headrace.protocol.codes import RequestCode
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.routes import loads
from tests.broker.test_compaction_and_retention import store_of
from tests.broker.wire import JobWire, Wire

FAST = BrokerSettings(delay_levels="60ms 150ms")


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with (
        EmbeddedBroker(tmp_path / "data", settings=FAST) as broker,
        Wire(broker.address) as connected,
    ):
        connected.create("t")
        yield connected


def now() -> int:
    return time.time_ns() // 1_000_000


def wait_for(wire: Wire, count: int, topic: str = "t", queue: int = 0) -> list[StoredMessage]:
    """Wait until a queue holds so many messages."""
    deadline = time.monotonic() + 10
    while True:
        answer = wire.pull(topic, queue, 0, maxMsgNums=10_000)
        found = decode_messages(answer.payload) if answer.code == 0 else []
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("properties", "delay"),
    [
        ("DELAY\0011\2", 60),
        ("DELAY\00118\2", 150),
        ("TIMER_DELAY_MS\001120\2", 120),
        ("TIMER_DELAY_SEC\0011\2", 1000),
    ],
)
def test_message_is_seen_when_its_delay_is_over(wire: Wire, properties: str, delay: int) -> None:
    begin = now()
    sent = wire.put("t", b"x", 1, i=f"KEYS\1k\2{properties}", j=2)
    assert (sent.code, sent.ext["queueId"]) == (0, "1")
    [message] = wait_for(wire, 1, queue=1)
    late = message.stored - begin - delay
    # Milliseconds by itself; a busy machine, or the first broker of a process, takes longer.
    assert 0 <= late < 2000
    assert (message.body, message.keys, message.reconsume_times) == (b"x", "k", 2)
    assert (message.born, message.flag) == (1234, 7)
    assert message.properties["REAL_TOPIC"] == "t"
    assert not {"DELAY", "TIMER_DELAY_MS", "TIMER_OUT_MS"} & message.properties.keys()


def test_times_of_their_own_are_kept_in_their_order(wire: Wire) -> None:
    begin = now()
    for wait in (150, 50, 100):
        wire.put("t", b"%d" % wait, i=f"TIMER_DELIVER_MS\1{begin + wait}\2")
    assert [message.body for message in wait_for(wire, 3)] == [b"50", b"100", b"150"]


def test_time_that_has_passed_is_no_delay(wire: Wire) -> None:
    wire.put("t", b"x", i="TIMER_DELIVER_MS\0015\2")
    assert decode_messages(wire.pull("t").payload)[0].body == b"x"


def test_topic_that_is_gone_by_then_stops_nothing(wire: Wire) -> None:
    wire.create("gone")
    wire.put("gone", b"x", i="DELAY\0011\2")
    wire.put("t", b"y", i="DELAY\0011\2")
    wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="gone")
    assert [message.body for message in wait_for(wire, 1)] == [b"y"]


def test_tools_see_how_far_each_level_is(wire: Wire) -> None:
    wire.put("t", b"x", i="DELAY\0012\2")
    wait_for(wire, 1)
    answer = wire.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert loads(answer.payload, dict)["offsetTable"] == {"2": 1}


def test_too_many_timers_are_refused_for_now(tmp_path: Path) -> None:
    settings = BrokerSettings(max_timers=0)
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Wire(broker.address) as wire:
        wire.create("t")
        answer = wire.put("t", b"x", i="TIMER_DELAY_SEC\0015\2")
        assert "flow control" in (answer.remark or "")
        assert wire.put("t", b"x", i="DELAY\0015\2").code == 0


def test_waiting_messages_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=FAST) as broker, Wire(broker.address) as wire:
        wire.create("t")
        wire.put("t", b"a", i="DELAY\0011\2")
        wait_for(wire, 1)
        wire.put("t", b"b", i="DELAY\0012\2")
        wire.put("t", b"c", i="TIMER_DELAY_MS\001200\2")
    with EmbeddedBroker(tmp_path, settings=FAST) as broker, Wire(broker.address) as wire:
        assert [message.body for message in wait_for(wire, 3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "point", ["broker.delays.before_unit", "store.unit.middle", "broker.delays.after_unit"]
)
def test_killed_broker_delivers_each_message_once(tmp_path: Path, point: str) -> None:
    options = ["--delay-levels", "100ms"]
    kill = {"HEADRACE_FAILPOINTS": f"{point}=kill:2"}
    answered: list[bytes] = []
    with spawn_broker(tmp_path, options=options, environment=kill) as broker:
        with JobWire(broker.address) as wire:
            wire.create("t")
            # It dies with the second delivery, however many messages that takes.
            with contextlib.suppress(OSError):
                for number in range(10_000):
                    delay = "DELAY\0011\2" if number % 2 else "TIMER_DELAY_MS\001120\2"
                    assert wire.put("t", b"%d" % number, i=delay).code == 0
                    answered.append(b"%d" % number)
        assert broker.process.wait(20) == -9
    with spawn_broker(tmp_path, options=options) as broker, JobWire(broker.address) as wire:
        wire.put("t", b"last", i="TIMER_DELAY_MS\001300\2")
        deadline = time.monotonic() + 20
        while b"last" not in (found := [m.body for m in wait_for(wire, len(answered) + 1)]):
            assert time.monotonic() < deadline
    # The message that was not answered may have been stored or not.
    assert len(found) == len(set(found)) <= len(answered) + 2
    assert {*answered, b"last"} <= set(found)


def fill(wire: Wire) -> None:
    """Fill some segments."""
    sent = [wire.start_put("other", b"z" * 1000) for _ in range(200)]
    assert {wire.receive(number).code for number in sent} == {0}


def test_messages_that_wait_do_not_expire(tmp_path: Path) -> None:
    settings = BrokerSettings(
        segment_size=64 * 1024,
        retention=timedelta(milliseconds=1),
        delay_levels="700ms",
        flush="async",
    )
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Wire(broker.address) as wire:
        wire.create("t")
        wire.create("other")
        wire.put("t", b"x", i="TIMER_DELAY_MS\0011400\2")
        wire.put("t", b"y", i="DELAY\0011\2")
        fill(wire)
        store_of(broker).expire()
        assert store_of(broker).bounds("rmq_sys_wheel_timer", 0).min_offset == 0
        assert [message.body for message in wait_for(wire, 2)] == [b"y", b"x"]
        # Once they are delivered, they go like all others.
        fill(wire)
        store_of(broker).expire()
        assert store_of(broker).bounds("rmq_sys_wheel_timer", 0).min_offset == 1
