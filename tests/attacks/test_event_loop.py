"""No request holds the broker's event loop: each with the largest body that it may have."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.handlers import HANDLERS
from headrace.broker.settings import Limits
from headrace.protocol.codes import RequestCode as Code
from headrace.protocol.messages import Message, encode_batch
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import StagedSection, encode_sections
from tests.broker.wire import JobWire

#: Seconds that a turn of the loop may take, of a core that has itself to itself.
LONGEST = 0.05
#: What such a core takes for an addition, s, where the bound was found.
ADDITION = 1.25e-7
LIMITS = Limits()


@dataclass
class Turns:
    """Notes how long each turn of a thread's loop takes, in seconds of a core."""

    thread: int = 0
    longest: float = 0.0
    what: str = ""
    all: list[float] = field(default_factory=list)

    def run(self, handle: asyncio.Handle, inner: Callable[[asyncio.Handle], None]) -> None:
        if threading.get_ident() != self.thread:
            inner(handle)
            return
        began = time.thread_time()
        inner(handle)
        took = time.thread_time() - began
        if took > self.longest:
            self.longest, self.what = took, repr(handle)[:300]


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    turns, inner = Turns(), asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        turns.run(handle, inner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", run)
        yield turns


@pytest.fixture
def broker(turns: Turns, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with opened(turns, tmp_path) as running:
        yield running


@contextmanager
def opened(turns: Turns, folder: Path) -> Iterator[EmbeddedBroker]:
    """A broker with a job, and its loop watched."""
    with EmbeddedBroker(folder, settings=BrokerSettings(flush="async")) as running:
        thread = running._thread
        assert thread is not None
        turns.thread = thread.ident or 0
        with JobWire(running.address) as wire:
            for name in ("lines", "out"):
                wire.create(name, queues=4)
            assert wire.open().code == 0
        yield running


def filled(make: Callable[[int], Any], around: Callable[[list[Any]], Any]) -> bytes:
    """Make the largest body of its kind: by its items, or by its bytes."""
    one = msgspec.json.encode(make(0))
    each = sum(map(one.count, (b",", b"{", b"["))) + 1
    most = min(LIMITS.max_json_items // each, LIMITS.max_json_body // (len(one) + 30)) - 20
    return msgspec.json.encode(around([make(number) for number in range(most)]))


def subscription(number: int) -> dict[str, Any]:
    return {"topic": f"t{number}", "subString": "*", "subVersion": number, "expressionType": "TAG"}


def queue(number: int) -> dict[str, Any]:
    return {"topic": "lines", "brokerName": "broker-a", "queueId": number}


def heartbeat(groups: int) -> bytes:
    consumers = [
        {"groupName": f"g{number}", "subscriptionDataSet": [subscription(0)]}
        for number in range(groups)
    ]
    return msgspec.json.encode({"clientID": "c", "consumerDataSet": consumers})


def of_one_group(told: list[Any]) -> dict[str, Any]:
    return {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": told}],
    }


def locks(queues: list[Any]) -> dict[str, Any]:
    return {"consumerGroup": "g", "clientId": "c", "mqSet": queues}


def topic(number: int) -> dict[str, Any]:
    return {"topicName": f"n{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


def commit(numbers: list[Any]) -> dict[str, Any]:
    record = {
        "job": "job",
        "kind": "commit",
        "epoch": 1,
        "batch": 1,
        "offsets": {f"lines@broker-a@{number}": 0 for number in numbers},
    }
    return {
        "commit_topic": "job-commitTopic",
        "group": "job",
        "previous": 0,
        "parts": [],
        "record": record,
    }


def sections(count: int) -> bytes:
    content = bytes(encode_records("out", 0, [b"x" * 20] * 50).data)
    return encode_sections(StagedSection("out", 0, 50, content) for _ in range(count))


SEND = {"a": "p", "b": "lines", "c": "", "d": 4, "e": 0, "f": 0, "g": 1234, "h": 0}
STAGE = {"job": "job", "epoch": 1, "batch": 1, "stage": 0, "partition": 0, "chunk": 0}
PULL = {
    "consumerGroup": "g", "topic": "lines", "queueId": 0, "queueOffset": 0, "maxMsgNums": 100_000,
    "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
}  # fmt: skip
PLACE = {"brokerName": "other", "brokerAddr": "h:1", "clusterName": "c", "brokerId": 0}

#: Requests whose body matters: with what fields, and the largest one.
LARGE: dict[str, tuple[int, dict[str, Any], Callable[[], bytes]]] = {
    "heartbeat of many groups": (
        Code.HEART_BEAT, {}, lambda: heartbeat(LIMITS.max_groups_per_client),
    ),
    "heartbeat of many subscriptions": (
        Code.HEART_BEAT, {}, lambda: filled(subscription, of_one_group),
    ),
    "locks": (Code.LOCK_BATCH_MQ, {}, lambda: filled(queue, locks)),
    "unlocks": (Code.UNLOCK_BATCH_MQ, {}, lambda: filled(queue, locks)),
    "topics": (
        Code.UPDATE_AND_CREATE_TOPIC_LIST, {},
        lambda: filled(topic, lambda many: {"topicConfigList": many}),
    ),
    "groups": (
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {},
        lambda: filled(lambda n: {"groupName": f"n{n}"}, lambda many: {"groupConfigList": many}),
    ),
    "registration of a broker": (
        Code.REGISTER_BROKER, PLACE | {"haServerAddr": ""},
        lambda: filled(
            topic,
            lambda many: {
                "topicConfigSerializeWrapper": {
                    "topicConfigTable": {each["topicName"]: each for each in many}
                }
            },
        ),
    ),
    "commit": (Code.COMMIT_BATCH, {}, lambda: filled(lambda n: f"lines@broker-a@{n}", commit)),
    "plan": (
        Code.PLAN_BATCH, {},
        lambda: filled(
            lambda _: "lines",
            lambda many: {"job": "job", "commit_topic": "job-commitTopic", "topics": many},
        ),
    ),
    "plan from many offsets": (
        Code.PLAN_BATCH, {},
        lambda: filled(
            lambda number: f"lines@broker-a@{number}",
            lambda many: {
                "job": "job",
                "commit_topic": "job-commitTopic",
                "topics": ["lines"],
                "offsets": dict.fromkeys(many, 0),
            },
        ),
    ),
    "parts": (Code.STAGE, STAGE | {"attempt": 1}, lambda: sections(1_200)),
    "one large part": (
        Code.STAGE, STAGE | {"attempt": 2},
        lambda: encode_sections([StagedSection(
            "out", 0, 100_000, bytes(encode_records("out", 0, [b"x" * 20] * 100_000).data),
        )]),
    ),
    "batch of small messages": (
        Code.SEND_BATCH_MESSAGE, SEND | {"m": "true", "i": "UNIQ_KEY\1x\2"},
        lambda: encode_batch([Message(topic="lines", body=b"x")] * 90_000),
    ),
    "large message": (Code.SEND_MESSAGE_V2, SEND, lambda: b"x" * (4 << 20)),
    "pull of much": (Code.PULL_MESSAGE, PULL, lambda: b""),
    "settings": (Code.UPDATE_BROKER_CONFIG, {}, lambda: b"# x\n" * (4_000_000)),
    "settings of the name server": (
        Code.UPDATE_NAMESRV_CONFIG, {}, lambda: b"a=b\n" * (4_000_000),
    ),
    "nested": (Code.HEART_BEAT, {}, lambda: b"[" * LIMITS.max_json_items),
    "one long text": (Code.HEART_BEAT, {}, lambda: b'{"clientID":"' + b"x" * 4_000_000 + b'"}'),
    "no JSON": (Code.HEART_BEAT, {}, lambda: b"'" * LIMITS.max_json_body),
    "numbers as keys": (
        Code.HEART_BEAT, {},
        lambda: b"{" + b",".join(b"%d:1" % number for number in range(90_000)) + b"}",
    ),
}  # fmt: skip


def slowness() -> float:
    """Return how much slower the core is now, as others share its caches and its second thread."""
    began, total = time.thread_time(), 0
    for number in range(100_000):
        total += number
    return max(1.0, (time.thread_time() - began) / 100_000 / ADDITION)


def shown(turns: Turns) -> str:
    return f"{turns.longest * 1000:.0f} ms in {turns.what}"


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_body_holds_nobody_up(broker: EmbeddedBroker, turns: Turns, name: str) -> None:
    code, ext, body = LARGE[name]
    made = body()
    assert len(made) <= LIMITS.max_frame
    found = []
    with JobWire(broker.address) as wire:
        wire.limit(60)
        for _ in range(6):
            turns.longest = 0.0
            wire.ask(code, made, **ext)
            # What it has begun goes on behind the answer.
            wire.ask(Code.GET_BROKER_CLUSTER_INFO)
            found.append((turns.longest, shown(turns)))
            if turns.longest < LONGEST * slowness():
                return
    raise AssertionError(min(found)[1])


def test_each_request_with_a_large_body_of_any_kind(turns: Turns, tmp_path: Path) -> None:
    """Whatever a request makes of a body that is not for it; of a broker whose tables are small."""
    with opened(turns, tmp_path) as broker:
        check_each(broker, turns)


def check_each(broker: EmbeddedBroker, turns: Turns) -> None:
    bodies = [
        filled(queue, lambda many: {"list": many}),
        filled(lambda number: number, lambda many: {"a": many}),
        filled(lambda number: f"k{number}", lambda many: {key: {} for key in many}),
    ]
    slow = {}
    for code in HANDLERS:
        for body in bodies:
            with JobWire(broker.address) as wire:
                wire.limit(60)
                turns.longest = 0.0
                wire.ask(code, body, topic="lines", queueId=0, consumerGroup="g", group="g")
            if turns.longest >= LONGEST * slowness():
                slow[Code(code).name] = shown(turns)
    assert not slow, "\n".join(f"{name}: {took}" for name, took in slow.items())


def test_a_thousand_groups_of_a_heartbeat_cost_one_write(tmp_path: Path) -> None:
    writes: list[str] = []

    def note(path: Path, table: object) -> None:
        writes.append(path.name)
        inner(path, table)

    from headrace.broker import snapshots

    inner = snapshots.save_snapshot
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "save_snapshot", note)
        with (
            EmbeddedBroker(tmp_path, settings=BrokerSettings(flush="async")) as running,
            JobWire(running.address) as wire,
        ):
            for _ in range(3):
                assert wire.ask(Code.HEART_BEAT, heartbeat(1_000)).code == 0
            assert running.statistics().groups == 1_000
            refused = wire.ask(
                Code.HEART_BEAT,
                msgspec.json.encode(
                    {"clientID": "c", "consumerDataSet": [{"groupName": "one-more"}]}
                ),
            )
            assert "max_groups_per_client" in str(refused.remark)
    # Once when they came, and once more at the end where that was not done.
    assert len(writes) <= 4, writes
