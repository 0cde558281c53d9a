"""Each limit, attacked."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from headrace.broker import BrokerProcess, BrokerSettings, EmbeddedBroker, Limits, spawn_broker
from headrace.broker.network.connection import ConnectionLedger
from headrace.broker.network.listener import most_connections
from headrace.errors import SettingsError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command, encode
from headrace.protocol.messages import Message
from headrace.quiet_log import QuietLog
from tests.broker.wire import Wire

ALIVE = RequestCode.HEADRACE_CAPABILITIES
SOON = timedelta(milliseconds=200)
MIB = 1024 * 1024

Start = Callable[..., EmbeddedBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[EmbeddedBroker] = []

    def begin(**limits: object) -> EmbeddedBroker:
        settings = BrokerSettings(flush="async", limits=Limits(**limits))  # type: ignore[arg-type]
        broker = EmbeddedBroker(tmp_path / "data", settings=settings)
        broker.start()
        running.append(broker)
        return broker

    yield begin
    for broker in running:
        broker.stop()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def is_closed(plain: socket.socket) -> bool:
    """Wait for the end; what comes before it is passed over."""
    try:
        while plain.recv(1 << 16):
            pass
    except (ConnectionError, BrokenPipeError):
        pass
    return True


def is_cut_off(attempt: Callable[[], None]) -> bool:
    """Go on until the broker ends the connection."""
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            attempt()
    except ConnectionError:
        return True
    return False


def dribble(attacker: socket.socket) -> None:
    attacker.send(b"x")
    with contextlib.suppress(TimeoutError):
        if not attacker.recv(1):
            raise ConnectionError


def poke(attacker: Wire) -> None:
    attacker.send(ALIVE)
    time.sleep(0.02)


def is_alive(broker: EmbeddedBroker) -> bool:
    with Wire(broker.address) as wire:
        return wire.ask(ALIVE).code == 0


def frame(code: int, **ext: str) -> bytes:
    return b"".join(encode(Command(code, ext, opaque=1)))


# Frames


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 16 * MIB + 1), id="frame"),
        pytest.param(struct.pack(">i", -1), id="negative"),
        pytest.param(frame(105, topic="x" * (256 * 1024)), id="header"),
        pytest.param(frame(105, **{f"k{i}": "" for i in range(257)}), id="fields"),
        pytest.param(struct.pack(">ii", 100_000, 99_990) + b"[" * 99_996, id="depth"),
    ],
)
def test_frame_beyond_a_limit_ends_its_own_connection_only(start: Start, data: bytes) -> None:
    broker = start()
    with connect(broker.address) as attacker:
        attacker.sendall(data)
        assert is_closed(attacker)
    assert is_alive(broker)


def test_claimed_frame_takes_no_memory_before_it_comes(start: Start) -> None:
    broker = start()
    before = psutil.Process().memory_info().rss
    attackers = [connect(broker.address) for _ in range(40)]
    for attacker in attackers:
        attacker.sendall(struct.pack(">i", 16 * MIB) + b"x")
    assert is_alive(broker)
    assert psutil.Process().memory_info().rss - before < 64 * MIB
    for attacker in attackers:
        attacker.close()


def test_large_frames_wait_for_room_and_all_arrive(start: Start) -> None:
    broker = start(max_receiving_in_all=300_000)
    with Wire(broker.address) as wire:
        wire.create("t")
    wires = [Wire(broker.address) for _ in range(8)]
    fields = {"a": "p", "b": "t", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    ext = {name: str(value) for name, value in fields.items()}
    request = b"".join(encode(Command(RequestCode.SEND_MESSAGE_V2, ext, b"x" * 200_000, opaque=1)))
    for wire in wires:
        wire.send_raw(request[:100_000])
    for wire in wires:
        wire.send_raw(request[100_000:])
    for wire in wires:
        assert wire.receive(1).code == 0
        wire.close()


# Connections


def test_connections_of_one_address_are_bounded(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(max_connections_per_address=3)
    wires = [Wire(broker.address) for _ in range(3)]
    assert [wire.ask(ALIVE).code for wire in wires] == [0, 0, 0]
    for _ in range(50):
        with connect(broker.address) as refused:
            assert is_closed(refused)
    assert [wire.ask(ALIVE).code for wire in wires] == [0, 0, 0]
    lines = [line for line in caplog.messages if "refusing a connection from 127.0.0.1" in line]
    assert len(lines) == 5
    for wire in wires:
        wire.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            assert is_alive(broker)
            break
        except ConnectionError:
            assert time.monotonic() < deadline


def test_connections_are_bounded_in_all(start: Start) -> None:
    broker = start(max_connections=2)
    with connect(broker.address), connect(broker.address), connect(broker.address) as third:
        assert is_closed(third)


def test_connection_that_says_nothing_is_closed(start: Start) -> None:
    broker = start(greeting_timeout=SOON)
    with connect(broker.address) as attacker:
        assert is_closed(attacker)


def test_frame_that_never_ends_is_cut_off_however_slowly_it_drips(start: Start) -> None:
    broker = start(frame_timeout=SOON)
    with connect(broker.address) as attacker:
        attacker.sendall(struct.pack(">i", 1_000_000))
        attacker.settimeout(0.02)
        assert is_cut_off(partial(dribble, attacker))


def test_many_frames_in_pieces_are_not_one_slow_frame(start: Start) -> None:
    broker = start(frame_timeout=timedelta(seconds=1))
    request = frame(ALIVE)
    with connect(broker.address) as client:
        began = time.monotonic()
        client.sendall(request[:30])
        while time.monotonic() - began < 1.5:
            # Always in the middle of a frame of the same size.
            client.sendall(request[30:] + request[:30])
            assert client.recv(1 << 16)


def test_silent_connection_is_closed_and_a_talking_one_is_not(start: Start) -> None:
    broker = start(idle_timeout=timedelta(seconds=1))
    with Wire(broker.address) as talking, connect(broker.address) as silent:
        silent.sendall(frame(ALIVE))
        closed: list[bool] = []
        deadline = time.monotonic() + 10
        silent.settimeout(0.05)
        while not closed and time.monotonic() < deadline:
            assert talking.ask(ALIVE).code == 0
            try:
                if not silent.recv(1 << 16):
                    closed.append(True)
            except TimeoutError:
                pass
        assert closed
        assert talking.ask(ALIVE).code == 0


def test_dead_peers_are_looked_for(start: Start) -> None:
    broker = start()
    with Wire(broker.address) as wire:
        wire.ask(ALIVE)
        port = int(broker.address.rpartition(":")[2])
        ours = [
            connection
            for connection in psutil.Process().net_connections("tcp4")
            if connection.laddr.port == port and connection.status == "ESTABLISHED"
        ]
        (found,) = ours
        with socket.socket(fileno=socket.dup(found.fd)) as held:
            assert held.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


# Requests


def test_requests_beyond_the_limit_in_flight_wait_and_are_all_answered(start: Start) -> None:
    broker = start(max_in_flight=4, max_held=10_000)
    with Wire(broker.address) as wire:
        wire.create("t")
        numbers = [wire.start_put("t", b"x" * 1000) for _ in range(300)]
        offsets = [int(wire.receive(number).ext["queueOffset"]) for number in numbers]
    assert offsets == list(range(300))


def test_requests_in_all_are_bounded_and_all_answered(start: Start) -> None:
    broker = start(max_held_in_all=5_000)
    wires = [Wire(broker.address) for _ in range(4)]
    wires[0].create("t")
    started = [(wire, wire.start_put("t", b"x" * 1000)) for _ in range(100) for wire in wires]
    assert {wire.receive(number).code for wire, number in started} == {0}
    for wire in wires:
        wire.close()


def test_waiting_requests_are_bounded_per_connection_and_in_all(start: Start) -> None:
    broker = start(max_polls=2, max_polls_in_all=3)
    waiting = {"sysFlag": 6, "suspendTimeoutMillis": 600_000}
    with Wire(broker.address) as wire, Wire(broker.address) as other:
        wire.create("t")
        kept = [wire.start_pull("t", **waiting) for _ in range(2)]
        refused = wire.pull("t", **waiting)
        assert (refused.code, "max_polls" in str(refused.remark)) == (2, True)
        kept_too = other.start_pull("t", **waiting)
        assert other.pull("t", **waiting).code == ResponseCode.SYSTEM_BUSY
        assert other.ask(ALIVE).code == 0
        wire.put("t", b"x")
        assert [wire.receive(number).code for number in kept] == [0, 0]
        assert other.receive(kept_too).code == 0


def test_unknown_codes_by_the_thousand_are_answered_and_not_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = start()
    with Wire(broker.address) as wire:
        numbers = [wire.send(12_345) for _ in range(3000)]
        assert {wire.receive(number).code for number in numbers} == {3}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("number", ["9" * 400, str(1 << 63), "-" + "9" * 30, "1e3", "x"])
def test_number_that_is_none_is_refused_in_few_words(start: Start, number: str) -> None:
    with Wire(start().address) as wire:
        wire.create("t")
        answer = wire.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId=number)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert len(answer.remark or "") < 300
        big = wire.put("t", b"x", h=1 << 40)
        assert big.code == ResponseCode.MESSAGE_ILLEGAL


# Tables


def consumers(count: int, subscriptions: int = 0) -> bytes:
    told = [{"topic": f"t{i}", "subString": "*"} for i in range(subscriptions)]
    groups = [{"groupName": f"g{i}", "subscriptionDataSet": told} for i in range(count)]
    return msgspec.json.encode({"clientID": "c", "consumerDataSet": groups})


def test_heartbeat_cannot_name_a_million_groups(start: Start) -> None:
    broker = start(max_groups_per_client=10, max_groups=15, max_subscriptions=20)
    with Wire(broker.address) as wire:
        huge = wire.ask(RequestCode.HEART_BEAT, consumers(1_000_000 // 40))
        assert (huge.code, "items" in str(huge.remark) or "groups" in str(huge.remark)) == (
            29,
            True,
        )
        assert wire.ask(RequestCode.HEART_BEAT, consumers(11)).code == 29
        assert wire.ask(RequestCode.HEART_BEAT, consumers(1, 21)).code == 2
        for _ in range(3):
            assert wire.ask(RequestCode.HEART_BEAT, consumers(10, 2)).code == 0
        assert wire.ask(RequestCode.HEART_BEAT, consumers(10, 3)).code == 2
        assert broker.statistics().topics < 20


def test_json_body_is_bounded_in_bytes_and_items(start: Start) -> None:
    broker = start(max_json_body=100_000, max_json_items=5_000)
    with Wire(broker.address) as wire:
        long = wire.ask(RequestCode.HEART_BEAT, b'{"clientID":"' + b"x" * 100_000 + b'"}')
        many = wire.ask(RequestCode.HEART_BEAT, b'{"consumerDataSet":[' + b"{}," * 9_000 + b"{}]}")
        assert (long.code, many.code) == (29, 29)
        assert "max_json_body" in str(long.remark)
        assert "max_json_items" in str(many.remark)


def test_groups_that_only_read_or_commit_are_bounded_too(start: Start) -> None:
    broker = start(max_groups=5)
    with Wire(broker.address) as wire:
        wire.create("t")
        commit = RequestCode.UPDATE_CONSUMER_OFFSET
        codes = [wire.pull("t", consumerGroup=f"reader{i}").code for i in range(8)]
        assert codes == [19] * 5 + [2] * 3
        refused = wire.ask(commit, consumerGroup="late", topic="t", queueId=0, commitOffset=0)
        assert (refused.code, "max_groups" in str(refused.remark)) == (2, True)
        known = wire.ask(commit, consumerGroup="reader0", topic="t", queueId=0, commitOffset=0)
        assert known.code == 0
        no_queue = wire.ask(commit, consumerGroup="reader0", topic="t", queueId=9, commitOffset=0)
        assert no_queue.code == ResponseCode.INVALID_PARAMETER


def test_topics_made_by_messages_are_bounded_and_those_made_by_hand_are_not(start: Start) -> None:
    broker = start(max_topics=40)
    with Wire(broker.address) as wire:
        codes = [wire.put(f"flood{i}", b"x", c="TBW102").code for i in range(40)]
        assert codes[0] == 0
        assert codes[-1] == ResponseCode.SYSTEM_BUSY
        assert broker.statistics().topics == 40
        wire.create("by-hand")
        assert wire.put("by-hand", b"x").code == 0


def test_locks_are_bounded(start: Start) -> None:
    broker = start(max_locks=10)
    queues = [{"topic": "t", "brokerName": "broker-a", "queueId": i} for i in range(100)]
    body = msgspec.json.encode({"consumerGroup": "g", "clientId": "c", "mqSet": queues})
    with Wire(broker.address) as wire:
        answer = wire.ask(RequestCode.LOCK_BATCH_MQ, body)
        assert len(msgspec.json.decode(answer.payload)["lockOKMQSet"]) == 10


def test_batch_cannot_grow_without_bound(start: Start) -> None:
    broker = start(max_batch_growth=1_000_000)
    batch = [Message(topic="t", body=b"")] * 1000
    with Wire(broker.address) as wire:
        wire.create("t")
        assert wire.put_batch("t", batch).code == 0
        mini = struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0)
        fields = {"a": "p", "b": "t", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "m": "true"}
        code = RequestCode.SEND_BATCH_MESSAGE
        grown = wire.ask(code, mini * 5000, **fields, i="k\1" + "v" * 5000 + "\2")
        assert grown.code == ResponseCode.MESSAGE_ILLEGAL
        assert "max_batch_growth" in str(grown.remark)


# Memory


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    limits = ["stall_timeout=2", "max_unsent_in_all=33554432", "max_receiving_in_all=33554432"]
    options = ["--flush", "async", *(word for limit in limits for word in ("--limit", limit))]
    with spawn_broker(tmp_path / "data", options=options) as running:
        yield running


def growth(broker: BrokerProcess, seconds: float, start: int) -> int:
    """Watch the memory of a broker for some time and give the most it grew."""
    process = psutil.Process(broker.pid)
    most = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        most = max(most, process.memory_info().rss - start)
        time.sleep(0.02)
    return most


def test_clients_that_never_read_cost_no_memory_and_are_cut_off(process: BrokerProcess) -> None:
    body = b"x" * (2 * MIB)
    with Wire(process.address) as wire:
        wire.create("t", queues=2)
        for _ in range(4):
            assert wire.put("t", body).code == 0
        # What is read of the log is mapped once and counts as memory of the process.
        wire.pull("t")
        before = psutil.Process(process.pid).memory_info().rss
        attackers = [Wire(process.address) for _ in range(10)]
        wait = {"sysFlag": 6, "suspendTimeoutMillis": 60_000}
        for attacker in attackers:
            # 1 GiB of answers at once, and as much when the next message comes.
            for _ in range(100):
                attacker.start_pull("t", 1, 0, **wait)
            for _ in range(20):
                attacker.start_pull("t")
        wire.put("t", b"y" * (3 * MIB), 1)
        grown = growth(process, 1.0, before)
        assert grown < 100 * MIB
        assert wire.pull("t").code == 0
        for attacker in attackers:
            assert is_cut_off(partial(poke, attacker))
            attacker.close()
        assert wire.pull("t").code == 0


def test_frames_that_never_end_cost_no_more_than_is_set_aside_for_them(
    process: BrokerProcess,
) -> None:
    with Wire(process.address) as wire:
        wire.ask(ALIVE)
        before = psutil.Process(process.pid).memory_info().rss
        attackers = [connect(process.address) for _ in range(20)]
        sent = 0
        for attacker in attackers:
            attacker.settimeout(0.05)
            attacker.sendall(struct.pack(">i", 16 * MIB))
            with contextlib.suppress(TimeoutError):
                for _ in range(15):
                    sent += attacker.send(bytes(MIB))
        # All of it would be 300 MiB; the rest waits with the attackers.
        assert sent < 200 * MIB
        assert growth(process, 0.2, before) < 90 * MIB
        assert wire.ask(ALIVE).code == 0
        for attacker in attackers:
            attacker.close()


def test_broker_without_descriptors_goes_on_when_it_has_some_again(process: BrokerProcess) -> None:
    with Wire(process.address) as wire:
        wire.ask(ALIVE)
        inside = psutil.Process(process.pid)
        most = inside.num_fds() + 10
        soft, hard = inside.rlimit(resource.RLIMIT_NOFILE)
        inside.rlimit(resource.RLIMIT_NOFILE, (most, hard))
        crowd = [connect(process.address) for _ in range(40)]
        assert wire.ask(ALIVE).code == 0
        for attacker in crowd:
            attacker.close()
        with Wire(process.address) as late:
            assert late.ask(ALIVE).code == 0
        inside.rlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_broker_stops_although_a_client_does_not_read(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data", settings=BrokerSettings(flush="async"))
    broker.start()
    attacker = Wire(broker.address)
    attacker.create("t")
    for _ in range(4):
        attacker.put("t", b"x" * (2 * MIB))
    for _ in range(10):
        attacker.start_pull("t")
    with Wire(broker.address) as wire:
        wire.ask(ALIVE)
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < 15
    attacker.close()


# The parts


class Asking:
    """A connection as the ledger sees it."""

    def __init__(self, unsent: int = 0) -> None:
        self.unsent = unsent
        self.told = 0
        self.cut: str | None = None

    def regulate(self) -> None:
        self.told += 1

    def cut_off(self, why: str) -> None:
        self.cut = why


def test_ledger_gives_room_in_turn() -> None:
    ledger = ConnectionLedger(Limits(max_receiving_in_all=100))
    first, second, third = Asking(), Asking(), Asking()
    assert ledger.receive(first, 1000), "a frame larger than all room comes alone"
    assert not ledger.receive(second, 90)
    assert not ledger.receive(third, 20)
    ledger.received(first)
    assert (second.told, third.told) == (1, 0)
    ledger.gone(second)
    assert third.told == 1
    assert not ledger.waiting


def test_ledger_lets_nobody_go_on_while_too_much_is_worked_on() -> None:
    ledger = ConnectionLedger(Limits(max_held_in_all=100))
    waiting = Asking()
    ledger.held = 150
    ledger.wait(waiting)
    ledger.wake()
    assert waiting.told == 0
    ledger.held = 100
    ledger.wake()
    assert (waiting.told, len(ledger.waiting)) == (1, 0)


def test_ledger_cuts_off_who_has_not_read_for_longest() -> None:
    ledger = ConnectionLedger(Limits(max_unsent=10, max_unsent_in_all=100))
    slow = [Asking(unsent=40) for _ in range(4)]
    for each in slow:
        ledger.clogged(each)
    assert [each.cut for each in slow] == [None] * 4, "looked at once a second, or in a rush"
    ledger.flowing(slow[1])
    slow[1].unsent = 0
    ledger.relieve()
    assert [each.cut is not None for each in slow] == [True, False, False, False]


def test_quiet_log_counts_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = iter([0.0, 1.0, 2.0, 3.0, 11.0])
    log = logging.getLogger("headrace.tests.quiet")
    quiet = QuietLog(log, lines=2, period=10, clock=lambda: next(clock))
    written = [quiet.warning("no %s", "tea") for _ in range(5)]
    assert written == [True, True, False, False, True]
    assert caplog.messages[2:] == ["2 more lines like the following were left out", "no tea"]


def test_limits_are_read_from_text() -> None:
    limits = Limits.parse(["max_frame=100", "idle_timeout=1.5"])
    assert (limits.max_frame, limits.idle_timeout) == (100, timedelta(seconds=1.5))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_frames=1", "did you mean 'max_frame'?"),
        ("max_frame=ten", "a size is bytes"),
        ("max_frame=0", "max_frame is '0': input should be greater than or equal to 1"),
        ("idle_timeout=-1", "idle_timeout is '-1'"),
    ],
)
def test_limit_that_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=r".") as refused:
        Limits.parse([text])
    assert says in str(refused.value)


def test_connections_leave_the_store_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 640), (256, 128), (100_000, 5000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_connections(5000) == most
