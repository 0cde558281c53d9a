"""A follower that lost its data rebuilds its compaction logs by messages.

Numbers in docstrings are those of the behaviours of compaction topics that a test proves.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.broker import EmbeddedBroker, spawn_broker
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.messages import decode_messages
from headrace.protocol.replication import Greeting
from tests.broker.replication.test_replicas import (
    caught_up,
    info,
    promote,
    running,
    segments,
    until,
)
from tests.broker.wire import Wire

TOPIC = "prices"


def put(wire: Wire, key: str, body: bytes, queue: int = 0) -> None:
    answer = wire.put(TOPIC, body, queue, i=f"KEYS\x01{key}\x02")
    assert answer.code == 0, answer.remark


def records(address: str, queue: int = 0) -> list[tuple[int, str, bytes]]:
    """Read a queue from the beginning, as a client does that wants a table."""
    found: list[tuple[int, str, bytes]] = []
    offset = 0
    with Wire(address) as wire:
        while True:
            answer = wire.pull(TOPIC, queue, offset)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            if "nextBeginOffset" not in answer.ext:
                # It starts over, rebuilds the queue, or has not heard of the topic yet.
                raise ConnectionError(answer.remark)
            if answer.code == 0:
                found += [
                    (each.queue_offset, each.properties["KEYS"], bytes(each.body))
                    for each in decode_messages(answer.payload)
                ]
            offset = int(answer.ext["nextBeginOffset"])


def table(address: str, queue: int = 0) -> dict[str, bytes]:
    return {key: body for _, key, body in records(address, queue)}


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Old keys in the first files of the commit log, and other messages behind them."""
    with running(tmp_path / "primary") as broker, Wire(broker.address) as wire:
        wire.create(TOPIC, 2, attributes="+cleanup.policy=COMPACTION")
        wire.create("lines", 1)
        for number in range(20):
            put(wire, f"old{number}", b"v%d" % number, number % 2)
        for number in range(40):
            wire.put("lines", b"x" * 200)
            put(wire, f"k{number % 3}", b"%d" % number)
        yield broker


def test_follower_without_the_old_files_has_the_same_values(
    tmp_path: Path, primary: EmbeddedBroker
) -> None:
    """Behaviours 28 to 31."""
    with running(tmp_path / "copy", follow=primary.address, follow_from="newest") as follower:
        caught_up(primary.address, follower.address)
        first = min(segments(tmp_path / "copy"))
        assert first == max(segments(tmp_path / "primary"))
        until(lambda: "old4" in table(follower.address), "the old keys are here")
        both = [table(primary.address, queue) for queue in (0, 1)]
        until(lambda: [table(follower.address, queue) for queue in (0, 1)] == both, "same values")
        # It may take the place of the primary from here on.
        until(lambda: "DONE" in journal(tmp_path / "copy").upper(), "the journal says so")
        promote(follower.address)
        with Wire(follower.address) as wire:
            put(wire, "old4", b"new")
        assert table(follower.address)["old4"] == b"new"
        assert table(follower.address)["old6"] == b"v6"


def journal(data: Path) -> str:
    path = data / "store" / "rebuild"
    text = path.read_text() if path.exists() else ""
    return "" if "pulling" in text or "compacting" in text else text


def test_messages_that_come_during_the_rebuild_are_neither_lost_nor_doubled(
    tmp_path: Path, primary: EmbeddedBroker
) -> None:
    """Behaviour 32."""
    stop = threading.Event()
    sent: dict[str, bytes] = {}

    def send() -> None:
        with Wire(primary.address) as wire:
            for number in itertools.count():
                if stop.is_set():
                    return
                key = f"n{number % 50}"
                put(wire, key, b"%d" % number)
                sent[key] = b"%d" % number

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with running(tmp_path / "copy", follow=primary.address, follow_from="newest") as follower:
            until(lambda: "old4" in table(follower.address), "the old keys are here")
            until(lambda: len(sent) == 50, "messages come meanwhile")
            stop.set()
            sender.join()
            caught_up(primary.address, follower.address)
            found = records(follower.address)
            offsets = [offset for offset, _, _ in found]
            assert offsets == sorted(set(offsets))
            assert table(follower.address) == table(primary.address)
            assert sent.items() <= table(follower.address).items()
    finally:
        stop.set()
        sender.join()


@pytest.mark.timeout(120)
def test_rebuild_that_is_killed_goes_on(tmp_path: Path, primary: EmbeddedBroker) -> None:
    """B12: the replica of RocketMQ that dies in the middle never resumes.

    All steps are killed in ``tests/store/replication/test_rebuild.py``, in one process.
    """
    steps = ("appended", "compacting")
    options = ["--follow", primary.address, "--follow-from", "newest", "--segment-size", "4000"]
    for step in steps:
        armed = {ENVIRONMENT_VARIABLE: f"replica.rebuild.{step}=kill"}
        broker = spawn_broker(tmp_path / "copy", options=options, environment=armed)
        with contextlib.ExitStack() as stack:
            stack.callback(broker.kill)
            assert broker.process.wait(20) != 0
    with spawn_broker(tmp_path / "copy", options=options) as follower:
        until(lambda: table(follower.address) == table(primary.address), "the same values")
        until(lambda: table(follower.address, 1) == table(primary.address, 1), "the same values")
        found = [offset for offset, _, _ in records(follower.address)]
        assert found == sorted(set(found))


def test_follower_in_the_middle_of_a_rebuild_is_not_promoted(
    tmp_path: Path, primary: EmbeddedBroker
) -> None:
    options = ["--follow", primary.address, "--follow-from", "newest", "--segment-size", "4000"]
    armed = {ENVIRONMENT_VARIABLE: "replica.rebuild.received=stop"}
    broker = spawn_broker(tmp_path / "copy", options=options, environment=armed)
    try:
        until(lambda: "pulling" in rebuilding(tmp_path / "copy"), "the rebuild has begun")
    finally:
        broker.kill()
    # Its primary is gone, and nobody can give it the rest.
    address = primary.address
    primary.stop()
    with running(tmp_path / "copy", follow=address, follow_from="newest") as follower:
        with Wire(follower.address) as wire:
            refused = wire.ask(RequestCode.PROMOTE)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "has yet to fetch old messages" in (refused.remark or "")
            busy = wire.pull(TOPIC)
            assert busy.code == ResponseCode.SYSTEM_BUSY
            assert wire.ask(RequestCode.PROMOTE, force="true").code == 0
        assert info(follower.address).role == "primary"


def rebuilding(data: Path) -> str:
    path = data / "store" / "rebuild"
    return path.read_text() if path.exists() else ""


def test_session_that_the_primary_does_not_know_begins_again(primary: EmbeddedBroker) -> None:
    with Wire(primary.address) as wire:
        greeting = Greeting(
            follower="f", address="127.0.0.1:1", broker="broker-a", cluster="DefaultCluster"
        )
        wire.ask(RequestCode.GREET_PRIMARY, msgspec.json.encode(greeting))
        birth = birth_of(wire)
        fields = {"topic": TOPIC, "queueId": 0, "birth": birth, "offset": 0, "upto": 5}
        fields |= {"session": "s", "maxBytes": 1000}
        lost = wire.ask(RequestCode.PULL_RECORDS, **fields, first="false")
        assert lost.code == ResponseCode.PULL_OFFSET_MOVED
        given = wire.ask(RequestCode.PULL_RECORDS, **fields, first="true")
        assert given.code == 0
        assert zlib.crc32(given.payload) == int(given.ext["crc"])
        assert wire.ask(RequestCode.PULL_RECORDS, **fields, first="false").code == 0
        assert wire.ask(RequestCode.PULL_RECORDS, **fields, end="true").code == 0
        lost = wire.ask(RequestCode.PULL_RECORDS, **fields, first="false")
        assert lost.code == ResponseCode.PULL_OFFSET_MOVED
        gone = wire.ask(RequestCode.PULL_RECORDS, **(fields | {"birth": 1}), first="true")
        assert gone.code == ResponseCode.QUERY_NOT_FOUND


def birth_of(wire: Wire) -> int:
    """Where the queue's first entry is: in front of its first record."""
    (first, *_) = decode_messages(wire.pull(TOPIC, 0, 0, maxMsgNums=1).payload)
    return first.position - 44
