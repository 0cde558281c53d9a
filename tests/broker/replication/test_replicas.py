"""A second broker follows a first."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker, PeerSecurity
from headrace.client import Client, Message, Producer
from headrace.errors import InputMissingError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.messages import decode_messages
from headrace.protocol.replication import Greeting, PromoteAnswer, ReplicationInfo, Welcome
from headrace.protocol.routes import TopicRoute
from tests.broker.wire import COMMIT_TOPIC, JOB, JobWire, Wire, staged_part

QUICK = {
    "follow_interval": timedelta(milliseconds=20),
    "replica_timeout": timedelta(milliseconds=400),
    "segment_size": 4000,
}


def running(data: Path, port: int = 0, **changes: object) -> EmbeddedBroker:
    return EmbeddedBroker(data, port, BrokerSettings(**(QUICK | changes)))  # type: ignore[arg-type]


def until(true: Callable[[], object], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while True:
        # A broker that cuts its log closes its connections.
        with contextlib.suppress(ConnectionError):
            if true():
                return
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def info(address: str) -> ReplicationInfo:
    with Wire(address) as wire:
        answer = wire.ask(RequestCode.LIST_REPLICAS)
        return msgspec.json.decode(answer.payload, type=ReplicationInfo)


def promote(address: str) -> PromoteAnswer:
    with Wire(address) as wire:
        answer = wire.ask(RequestCode.PROMOTE)
        assert answer.code == 0, answer.remark
        return msgspec.json.decode(answer.payload, type=PromoteAnswer)


def caught_up(primary: str, follower: str) -> None:
    until(lambda: info(follower).end == info(primary).end, "the follower caught up")


def bodies(address: str, topic: str, queue: int = 0) -> list[bytes]:
    with Wire(address) as wire:
        found: list[bytes] = []
        while (answer := wire.pull(topic, queue, len(found))).code == 0:
            found += [bytes(each.body) for each in decode_messages(answer.payload)]
        return found


def segments(data: Path) -> dict[str, bytes]:
    found = {}
    for each in (data / "store" / "log").glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # a follower that starts over deletes its own
            found[each.name] = each.read_bytes()
    return found


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with running(tmp_path / "primary") as broker:
        yield broker


@pytest.fixture
def follower(tmp_path: Path, primary: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    with running(tmp_path / "follower", follow=primary.address) as broker:
        yield broker


@pytest.fixture
def wire(primary: EmbeddedBroker) -> Iterator[JobWire]:
    with JobWire(primary.address) as connected:
        yield connected


def test_follower_has_the_same_log_and_tables(
    tmp_path: Path, primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    wire.create("gone")
    for number in range(60):
        assert wire.put("lines", b"%d" % number, number % 2).code == 0
    wire.put("gone", b"x")
    group = {"groupName": "readers", "retryMaxTimes": 7}
    body = msgspec.json.encode(group)
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0
    wire.open()
    wire.stage({("lines", 0): [b"staged"] * 30, ("lines", 1): [b"too"]})
    commit = wire.commit(parts=[staged_part(records=31)], offsets={"lines@broker-a@0": 7})
    assert commit.code == 0, commit.remark
    assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="gone").code == 0
    caught_up(primary.address, follower.address)
    assert segments(tmp_path / "follower") == segments(tmp_path / "primary")
    assert len(segments(tmp_path / "primary")) > 3
    with Wire(follower.address) as other:
        until(lambda: other.pull("lines").code == 0, "the topic is known")
        until(lambda: other.pull("gone").code == ResponseCode.TOPIC_NOT_EXIST, "it is gone")

        def offset() -> str | None:
            fields = {"consumerGroup": JOB, "topic": "lines", "queueId": 0}
            answer = other.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
            return answer.ext.get("offset")

        until(lambda: offset() == "7", "offsets are taken over")
        answer = other.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="readers")
        assert msgspec.json.decode(answer.payload)["retryMaxTimes"] == 7
    for queue in (0, 1):
        assert bodies(follower.address, "lines", queue) == bodies(primary.address, "lines", queue)


def test_follower_refuses_to_change_anything(
    primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    wire.put("lines", b"x")
    caught_up(primary.address, follower.address)
    with JobWire(follower.address) as other:
        refused = [
            other.put("lines", b"y"),
            other.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="lines"),
            other.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="new"),
            other.open(),
            other.commit(),
        ]
    assert {answer.code for answer in refused} == {ResponseCode.NO_PERMISSION}
    for answer in refused:
        assert f"follows {primary.address} and is read-only" in (answer.remark or "")
    until(lambda: bodies(follower.address, "lines") == [b"x"], "it still serves")


def test_routes_name_the_follower_beside_its_primary(
    primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    caught_up(primary.address, follower.address)

    def addresses(broker: EmbeddedBroker) -> dict[str, str]:
        with Wire(broker.address) as other:
            answer = other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="lines")
            if answer.code:
                return {}
            route = msgspec.json.decode(answer.payload, type=TopicRoute)
            return route.broker_datas[0].broker_addrs

    both = {"0": primary.address, "1": follower.address}
    until(lambda: addresses(primary) == both, "the primary lists both")
    until(lambda: addresses(follower) == both, "the follower lists both")
    assert promote(follower.address).fenced
    assert addresses(follower) == {"0": follower.address}
    # Who still asks the old one is sent to the new one.
    assert addresses(primary) == {"0": follower.address}


def test_waiting_consumer_of_a_follower_is_woken(
    primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    wire.put("lines", b"x")
    until(lambda: info(follower.address).end == info(primary.address).end, "caught up")
    with Wire(follower.address) as other:
        until(lambda: other.pull("lines").code == 0, "the topic is known")
        waiting = other.start_pull("lines", 0, 1, sysFlag=6, suspendTimeoutMillis=8000)
        wire.put("lines", b"y")
        answer = other.receive(waiting)
    assert [bytes(each.body) for each in decode_messages(answer.payload)] == [b"y"]


def test_promotion_of_a_follower_whose_primary_is_there_loses_nothing(
    primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    for number in range(20):
        wire.put("lines", b"%d" % number)
    answer = promote(follower.address)
    assert answer.fenced
    assert info(primary.address).role == "fenced"
    refused = wire.put("lines", b"late")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert f"{follower.address} was promoted" in (refused.remark or "")
    with Wire(follower.address) as other:
        assert other.put("lines", b"20").code == 0
    assert bodies(follower.address, "lines") == [b"%d" % number for number in range(21)]


def test_promoted_broker_knows_the_jobs(
    primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    wire.open()
    wire.stage({("lines", 0): [b"one"]})
    assert wire.commit(parts=[staged_part()]).code == 0
    caught_up(primary.address, follower.address)
    with JobWire(follower.address) as other:
        (job,) = msgspec.json.decode(other.ask(RequestCode.LIST_JOBS).payload)
        assert job["record"]["batch"] == 1
    promote(follower.address)
    with JobWire(follower.address) as other:
        state = other.plan(["lines"])
        assert state.record is not None
        assert (state.record.epoch, state.record.batch) == (1, 1)
        # What it has read of the old primary may differ here: it begins a new epoch first.
        other.stage({("lines", 0): [b"two"]}, batch=2)
        refused = other.commit(2, parts=[staged_part()])
        assert refused.code == InputMissingError.response_code
        assert other.open().code == 0
        other.stage({("lines", 0): [b"two"]}, epoch=2, batch=2)
        assert other.commit(2, parts=[staged_part()], epoch=2).code == 0
    assert bodies(follower.address, "lines") == [b"one", b"two"]
    assert info(follower.address).role == "primary"


@pytest.mark.parametrize("mark", [0, (1 << 64) - 1])
def test_every_promotion_can_be_followed(
    primary: EmbeddedBroker, tmp_path: Path, mark: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random.SystemRandom, "getrandbits", lambda *_: mark)
    with running(tmp_path / "second", follow=primary.address) as second:
        with Wire(primary.address) as wire:
            wire.create("lines", 1)
            assert wire.put("lines", b"one").code == 0
        caught_up(primary.address, second.address)
        promote(second.address)
        with running(tmp_path / "third", follow=second.address) as third:
            caught_up(second.address, third.address)
            assert bodies(third.address, "lines") == [b"one"]


def test_clients_are_told_who_is_the_primary(
    primary: EmbeddedBroker, follower: EmbeddedBroker
) -> None:
    with Wire(primary.address) as wire:
        wire.create("lines", 1)
        assert wire.put("lines", b"one").code == 0
    caught_up(primary.address, follower.address)
    with Client(f"{primary.address};{follower.address}") as client:
        producer = Producer(client)
        assert producer.send(Message(topic="lines", body=b"two")).status == ResponseCode.SUCCESS
        assert promote(follower.address).fenced
        with Wire(primary.address) as wire:
            # It may have messages that no other broker has: nobody reads them.
            refused = wire.pull("lines")
            assert (refused.code, refused.ext["primary"]) == (16, follower.address)
            assert wire.ask(RequestCode.GET_MAX_OFFSET).code == ResponseCode.NO_PERMISSION
        producer.send(Message(topic="lines", body=b"three"))
    assert bodies(follower.address, "lines") == [b"one", b"two", b"three"]


def test_old_primary_that_comes_back_is_fenced_and_follows(tmp_path: Path) -> None:
    """A zombie: it was gone while its follower was promoted."""
    first = running(tmp_path / "first")
    first.start()
    address = first.address
    port = int(address.rpartition(":")[2])
    with running(tmp_path / "second", follow=address) as second:
        with Wire(address) as wire:
            wire.create("lines")
            wire.put("lines", b"both")
            caught_up(address, second.address)
        first.stop()
        assert not promote(second.address).fenced
        with Wire(second.address) as wire:
            assert wire.put("lines", b"new").code == 0
        # It asks around before it takes anything.
        with running(tmp_path / "first", port), Wire(address) as wire:
            assert info(address).role == "fenced"
            assert wire.put("lines", b"zombie").code == ResponseCode.NO_PERMISSION
        with running(tmp_path / "first", port, follow=second.address) as first:
            caught_up(second.address, address)
            until(lambda: bodies(address, "lines") == [b"both", b"new"], "it follows")
            assert segments(tmp_path / "first") == segments(tmp_path / "second")


def test_old_primary_with_messages_of_its_own_cuts_them_and_follows(tmp_path: Path) -> None:
    first = running(tmp_path / "first")
    first.start()
    address = first.address
    port = int(address.rpartition(":")[2])
    second = running(tmp_path / "second", follow=address)
    second.start()
    other = second.address
    with Wire(address) as wire:
        wire.create("lines")
        wire.put("lines", b"both")
        caught_up(address, other)
        second.stop()
        # Nobody has these but the old primary.
        wire.put("lines", b"alone")
    first.stop()
    second = running(tmp_path / "second", int(other.rpartition(":")[2]), follow=address)
    with second:
        assert not promote(other).fenced
        with Wire(other) as wire:
            wire.put("lines", b"new")
            wire.put("lines", b"newer")
        with running(tmp_path / "first", port, follow=other):
            until(lambda: bodies(address, "lines") == [b"both", b"new", b"newer"], "follows")
            caught_up(other, address)
            assert segments(tmp_path / "first") == segments(tmp_path / "second")


def test_promoted_broker_stays_a_primary_whatever_its_command_line_says(tmp_path: Path) -> None:
    with running(tmp_path / "first") as first:
        second = running(tmp_path / "second", follow=first.address)
        with second:
            port = int(second.address.rpartition(":")[2])
            until(lambda: info(second.address).state == "following", "it follows")
            promote(second.address)
        with running(tmp_path / "second", port, follow=first.address) as again:
            assert info(again.address).role == "primary"
            with Wire(again.address) as wire:
                wire.create("lines")
                assert wire.put("lines", b"x").code == 0


def test_answer_waits_for_as_many_followers_as_are_asked_for(tmp_path: Path) -> None:
    with running(tmp_path / "primary", min_replicas=1) as primary, JobWire(primary.address) as wire:
        wire.create("lines")
        alone = wire.put("lines", b"alone")
        assert alone.code == ResponseCode.SLAVE_NOT_AVAILABLE
        # It stays, and the client is told where.
        assert alone.ext["queueOffset"] == "0"
        assert wire.open().code == ResponseCode.SYSTEM_BUSY
        with running(tmp_path / "follower", follow=primary.address) as follower:
            until(lambda: wire.put("lines", b"both").code == 0, "a follower is there")
            assert bodies(follower.address, "lines") == bodies(primary.address, "lines")
            # The epoch is open already: a repeat waits for the followers, and makes no other.
            assert wire.open().code == 0
            wire.stage({("lines", 0): [b"staged"]}, epoch=2)
            assert wire.commit(epoch=2, parts=[staged_part()]).code == 0
            assert bodies(follower.address, "lines")[-1] == b"staged"
            assert len(bodies(follower.address, COMMIT_TOPIC)) == 3


def test_commit_that_too_few_followers_have_is_answered_when_it_is_repeated(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "primary", min_replicas=1) as primary, JobWire(primary.address) as wire:
        wire.create("lines")
        wire.open()
        wire.stage({("lines", 0): [b"once"]})
        parts = [staged_part()]
        assert wire.commit(parts=parts).code == ResponseCode.SYSTEM_BUSY
        assert wire.commit(parts=parts).code == ResponseCode.SYSTEM_BUSY
        with running(tmp_path / "follower", follow=primary.address) as follower:
            caught_up(primary.address, follower.address)
            until(lambda: wire.commit(parts=parts).code == 0, "the repeat is answered")
            assert bodies(follower.address, "lines") == [b"once"]


def test_slow_follower_makes_the_answer_say_so(tmp_path: Path) -> None:
    """Nothing but the greeting: it is there, and acknowledges nothing."""
    with running(tmp_path / "primary", min_replicas=1) as primary, Wire(primary.address) as slow:
        greeting = Greeting(
            follower="slow", address="127.0.0.1:1", broker="broker-a", cluster="DefaultCluster"
        )
        body = msgspec.json.encode(greeting)
        assert slow.ask(RequestCode.GREET_PRIMARY, body).code == 0
        with Wire(primary.address) as wire:
            wire.create("lines")
            answer = wire.put("lines", b"x")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert answer.ext["queueOffset"] == "0"
        assert "within 0.4 s" in (answer.remark or "")


def test_two_followers_get_everything(tmp_path: Path, primary: EmbeddedBroker) -> None:
    with contextlib.ExitStack() as stack:
        followers = [
            stack.enter_context(running(tmp_path / str(one), follow=primary.address))
            for one in range(2)
        ]
        with Wire(primary.address) as wire:
            wire.create("lines")
            for number in range(30):
                wire.put("lines", b"%d" % number)
        for each in followers:
            caught_up(primary.address, each.address)
        rows = info(primary.address).replicas
        assert sorted(row.number for row in rows) == [1, 2]
        assert {row.address for row in rows} == {each.address for each in followers}
        for one in range(2):
            assert segments(tmp_path / str(one)) == segments(tmp_path / "primary")


def test_wrong_address_is_said_and_tried_again(tmp_path: Path, primary: EmbeddedBroker) -> None:
    free = primary.address
    with running(tmp_path / "nobody", follow="127.0.0.1:1") as broker:
        until(lambda: "127.0.0.1:1" in info(broker.address).state, "it says what is wrong")
        with running(tmp_path / "wrong", follow=broker.address) as other:
            until(lambda: "is a follower of" in info(other.address).state, "no primary there")
    assert info(free).role == "primary"


def test_broker_of_another_name_is_not_let_in(tmp_path: Path, primary: EmbeddedBroker) -> None:
    with running(tmp_path / "b", follow=primary.address, broker_name="broker-b") as broker:
        until(lambda: "'broker-b' of" in info(broker.address).state, "it says so")


def test_folder_with_another_log_is_left_alone(tmp_path: Path, primary: EmbeddedBroker) -> None:
    with running(tmp_path / "other") as other, Wire(other.address) as wire:
        wire.create("lines")
        wire.put("lines", b"other")
    before = segments(tmp_path / "other")
    with running(tmp_path / "other", follow=primary.address) as broker:
        until(lambda: "holds another log" in info(broker.address).state, "it says so")
    assert segments(tmp_path / "other") == before


def test_statistics_tell_how_far_a_follower_is(
    primary: EmbeddedBroker, follower: EmbeddedBroker, wire: JobWire
) -> None:
    wire.create("lines")
    wire.put("lines", b"x")
    caught_up(primary.address, follower.address)

    def row() -> tuple[int, int]:
        (found,) = info(primary.address).replicas
        assert found.heard is not None
        assert found.heard < 10
        return found.durable, found.lag

    until(lambda: row() == (info(primary.address).end, 0), "the primary knows")
    own = info(follower.address)
    assert (own.role, own.primary, own.state, own.lag) == (
        "follower",
        primary.address,
        "following",
        0,
    )


_ACL = """
accounts:
- accessKey: other-broker
  secretKey: "12345678"
  admin: true
"""


def test_followers_prove_who_they_are_and_speak_tls(tmp_path: Path) -> None:
    acl = tmp_path / "acl.yml"
    acl.write_text(_ACL)
    security = PeerSecurity(
        access_key="other-broker", secret_key="12345678", tls=True, tls_verify=False
    )
    with (
        running(tmp_path / "primary", acl=acl, tls=True, tls_mode="enforcing") as primary,
        running(tmp_path / "follower", follow=primary.address, peers=security) as follower,
        running(tmp_path / "nobody", follow=primary.address) as stranger,
        running(
            tmp_path / "unsigned",
            follow=primary.address,
            peers=PeerSecurity(tls=True, tls_verify=False),
        ) as unsigned,
    ):
        until(lambda: info(follower.address).state == "following", "it follows")
        until(lambda: "TLS" in info(stranger.address).state, "it is not let in")
        until(lambda: "access control" in info(unsigned.address).state, "it must sign")
        assert promote(follower.address).epoch


def expire(address: str) -> int:
    """Have retention run; the first position that is left."""
    with Wire(address) as wire:
        answer = wire.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert answer.code == 0, answer.remark
    return info(address).begin


def test_retention_keeps_what_a_follower_that_is_there_needs(tmp_path: Path) -> None:
    with running(tmp_path / "primary", retention_size=8000) as primary:
        with Wire(primary.address) as wire, Wire(primary.address) as slow:
            greeting = Greeting(
                follower="slow", address="127.0.0.1:1", broker="broker-a", cluster="DefaultCluster"
            )
            answer = slow.ask(RequestCode.GREET_PRIMARY, msgspec.json.encode(greeting))
            welcome = msgspec.json.decode(answer.payload, type=Welcome)
            wire.create("lines")
            fields = {"follower": "slow", "address": "127.0.0.1:1", "log": welcome.log}
            fields |= {"epoch": "0", "epochStart": "0", "epochMark": "0", "maxBytes": "100"}
            slow.send(RequestCode.FOLLOW_LOG, **fields, position=0, durable=0, wait=0)
            for _ in range(60):
                wire.put("lines", b"x" * 400)
            assert expire(primary.address) == 0
        until(lambda: expire(primary.address) > 0, "nobody needs it any more")


def test_follower_that_fell_behind_the_log_starts_over(tmp_path: Path) -> None:
    with running(tmp_path / "primary", retention_size=8000) as primary:
        follower = running(tmp_path / "follower", follow=primary.address)
        with Wire(primary.address) as wire:
            wire.create("lines")
            wire.put("lines", b"first")
            with follower:
                caught_up(primary.address, follower.address)
            for number in range(60):
                wire.put("lines", b"%400d" % number)
        until(lambda: expire(primary.address) > 0, "the log begins later")
        with running(tmp_path / "follower", follow=primary.address) as follower:
            until(
                lambda: segments(tmp_path / "follower") == segments(tmp_path / "primary"),
                "it has what there is",
            )
            caught_up(primary.address, follower.address)
            assert info(follower.address).begin == info(primary.address).begin
            with Wire(follower.address) as wire, Wire(primary.address) as other:
                both = [each.pull("lines").ext["minOffset"] for each in (wire, other)]
            assert both[0] == both[1] != "0"
