"""Push consumers on both kinds of cluster: shares, retries, dead letters, order, broadcasting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.client import (
    DEAD_LETTER,
    Admin,
    AsyncClient,
    AsyncPushConsumer,
    Client,
    ClientSettings,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    PushOptions,
    Retry,
    StoredMessage,
)
from headrace.errors import ConfigurationError, SettingsError, TopicNotFoundError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Buffer, Command
from headrace.protocol.groups import LockRequest, LockResult, dead_letter_topic
from headrace.protocol.routes import dumps, loads
from tests.clusters import Cluster

MakeTopic = Callable[..., str]
SECOND = timedelta(seconds=1)
WAIT = timedelta(seconds=1)


@pytest.fixture
def brisk(cluster: Cluster) -> Iterator[Client]:
    """A client whose groups commit and look at their members often."""
    often = timedelta(milliseconds=100)
    settings = ClientSettings(rebalance_interval=SECOND, commit_interval=often, lock_interval=often)
    with Client(cluster.namesrv, settings) as client:
        yield client


def options(**given: object) -> PushOptions:
    return PushOptions(**{"start": "first", "wait": WAIT, **given})  # type: ignore[arg-type]


def send(client: Client, topic: str, bodies: Sequence[bytes], tags: str | None = None) -> None:
    producer = Producer(client)
    for number, queue in enumerate(client.queues(topic)):
        part = bodies[number :: len(client.queues(topic))]
        if part:
            producer.send_batch([Message(topic=topic, body=b, tags=tags) for b in part], queue)


def send_singly(client: Client, topic: str, *bodies: bytes) -> None:
    """Send messages that have ids of their own, which those of a batch have not."""
    for body in bodies:
        Producer(client).send(Message(topic=topic, body=body))


def until(condition: Callable[[], bool], what: object = "", seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.02)


def committed(client: Client, group: str, topic: str) -> int:
    consumer = PullConsumer(client, group)
    return sum(consumer.committed(queue) or 0 for queue in client.queues(topic))


class Log:
    """What a listener has seen; it fails as it is told to."""

    def __init__(self, **failures: int) -> None:
        self.seen: list[StoredMessage] = []
        self._failures = {name.encode(): times for name, times in failures.items()}

    def __call__(self, message: StoredMessage) -> None:
        self.seen.append(message)
        if self._failures.get(message.body, 0):
            self._failures[message.body] -= 1
            raise ValueError(f"cannot do {message.body!r}")

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.seen]


def test_members_share_the_queues_and_what_one_leaves_undone_the_other_does(
    brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=4)
    bodies = [b"%d" % number for number in range(40)]
    send(brisk, topic, bodies)
    stuck, go_on = threading.Event(), threading.Event()
    done: Counter[bytes] = Counter()

    async def slow(message: StoredMessage) -> None:
        stuck.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        done[message.body] += 1

    def quick(message: StoredMessage) -> None:
        done[message.body] += 1

    group = f"{topic}-g"
    lame = PushConsumer(brisk, group, [topic], slow, options(stop_timeout=SECOND / 10))
    lame.start()
    assert stuck.wait(10)
    with PushConsumer(brisk, group, {topic: "*"}, quick, options()) as healthy:
        until(lambda: _share(healthy, topic) == 2 == _share(lame, topic))
        assert sorted(_queues(healthy, topic) + _queues(lame, topic)) == brisk.queues(topic)
        until(lambda: len(done) == 20, lambda: done)
        # It dies without having done anything: its half of the messages goes to the other one.
        lame.close()
        until(lambda: len(done) == 40, lambda: sorted(set(bodies) - set(done)))
        until(lambda: committed(brisk, group, topic) == 40)
        statistics = healthy.statistics()
        assert statistics is not None
        assert (statistics.processed, statistics.failed, statistics.sent_back) == (40, 0, 0)
        assert statistics.rebalances >= 2
        assert (statistics.buffered, statistics.buffered_bytes, statistics.running) == (0, 0, 0)
    assert set(done.values()) == {1}
    assert Admin(brisk).group_members(group) == []


def _queues(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in consumer.assignment() if queue.topic == topic]


def _share(consumer: PushConsumer, topic: str) -> int:
    return len(_queues(consumer, topic))


def test_what_fails_comes_again_and_ends_among_the_dead_letters(
    cluster: Cluster,
    brisk: Client,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-g"
    send_singly(brisk, topic, b"good", b"once", b"never", b"dead", b"later")
    log = Log(once=1, never=9)

    def listener(message: StoredMessage) -> Outcome:
        log(message)
        if message.body == b"dead":
            return DEAD_LETTER
        if message.body == b"later" and not message.reconsume_times:
            # Between two of the broker's levels.
            return Retry(timedelta(seconds=1.5))
        return None

    chosen = options(max_reconsume_times=1, retry_delay=SECOND)
    with PushConsumer(brisk, group, [topic], listener, chosen) as consumer:
        until(lambda: Counter(log.bodies)[b"never"] == 2, lambda: log.bodies)
        until(lambda: Counter(log.bodies)[b"once"] == 2, lambda: log.bodies)
        until(lambda: Counter(log.bodies)[b"later"] == 2, lambda: log.bodies)
        statistics = consumer.statistics()
        assert statistics is not None
        assert statistics.failed == 3
        dead = _dead_letters(brisk, group, 2)
    assert sorted(message.body for message in dead) == [b"dead", b"never"]
    assert Counter(log.bodies) == {b"good": 1, b"dead": 1, b"once": 2, b"never": 2, b"later": 2}
    # What comes again shows its own topic, the id it was sent with, and how often it came.
    again = [message for message in log.seen if message.reconsume_times]
    assert {message.topic for message in again} == {topic}
    assert {message.reconsume_times for message in again} == {1}
    first = {message.body: message for message in log.seen if not message.reconsume_times}
    for message in again:
        assert message.unique_key == first[message.body].unique_key
        assert message.stored - first[message.body].stored >= 900
    assert committed(brisk, group, topic) == 5
    assert "ValueError: cannot do b'once'" in caplog.text
    assert "test_push.py" in caplog.text
    assert 'raise ValueError(f"cannot do {message.body!r}")' in caplog.text


def _dead_letters(client: Client, group: str, count: int) -> list[StoredMessage]:
    topic = dead_letter_topic(group)
    found: list[StoredMessage] = []

    def arrived() -> bool:
        try:
            (queue,) = client.queues(topic, refresh=True)
        except TopicNotFoundError:
            return False
        found[:] = PullConsumer(client).pull(queue, 0).messages()
        return len(found) >= count

    until(arrived, lambda: found)
    return found


def test_a_delay_between_the_brokers_levels_is_possible(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    send_singly(brisk, topic, b"once")
    log = Log(once=1)
    chosen = options(retry_delay=timedelta(seconds=1.2))
    with PushConsumer(brisk, f"{topic}-g", [topic], log, chosen):
        until(lambda: len(log.seen) == 2)
    first, second = log.seen
    assert (second.topic, second.body, second.reconsume_times) == (topic, b"once", 1)
    assert second.unique_key == first.unique_key


def test_ordered_queues_are_processed_one_message_after_the_other_by_their_lock_holder(
    brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=3)
    group = f"{topic}-g"
    send(brisk, topic, [b"%d" % number for number in range(30)])
    log = Log(**{"7": 3})
    lock, busy, clashes = threading.Lock(), Counter[int](), list[int]()

    def listener(message: StoredMessage) -> None:
        with lock:
            busy[message.queue_id] += 1
            if busy[message.queue_id] > 1:
                clashes.append(message.queue_id)
        time.sleep(0.005)
        try:
            log(message)
        finally:
            with lock:
                busy[message.queue_id] -= 1

    ordered = options(orderly=True, suspend=timedelta(milliseconds=50))
    with (
        PushConsumer(brisk, group, [topic], listener, ordered) as first,
        PushConsumer(brisk, group, [topic], listener, ordered) as second,
    ):
        until(lambda: _share(first, topic) + _share(second, topic) == 3)
        until(lambda: {_share(first, topic), _share(second, topic)} == {1, 2})
        until(lambda: len(set(log.bodies)) == 30)
        until(lambda: committed(brisk, group, topic) == 30)
    assert clashes == []
    by_queue: dict[int, list[int]] = defaultdict(list)
    for message in log.seen:
        by_queue[message.queue_id].append(int(message.body))
    for queue_id, numbers in by_queue.items():
        assert numbers == sorted(numbers), queue_id
    assert [message.reconsume_times for message in log.seen if message.body == b"7"] == [0, 1, 2, 3]
    assert len(log.seen) == 33


def test_an_ordered_message_that_fails_too_often_is_a_dead_letter(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    send(brisk, topic, [b"bad", b"good"])
    log = Log(bad=9)
    ordered = options(orderly=True, suspend=timedelta(milliseconds=20), max_reconsume_times=2)
    with PushConsumer(brisk, f"{topic}-g", [topic], log, ordered):
        until(lambda: b"good" in log.bodies)
        assert log.bodies == [b"bad"] * 3 + [b"good"]
        assert [message.body for message in _dead_letters(brisk, f"{topic}-g", 1)] == [b"bad"]


def test_every_broadcasting_member_reads_everything_and_goes_on_where_its_file_says(
    brisk: Client, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(queues=2)
    group = f"{topic}-g"
    send(brisk, topic, [b"1", b"2", b"bad"])
    logs = Log(bad=1), Log()
    files = [tmp_path / str(number) / "offsets.json" for number in range(2)]
    for number, log in enumerate(logs):
        chosen = options(broadcasting=True, offsets_file=files[number])
        with PushConsumer(brisk, group, [topic], log, chosen) as consumer:
            until(lambda log=log: len(log.seen) == 3)  # type: ignore[misc]
            assert consumer.assignment() == brisk.queues(topic)
        statistics = consumer.statistics()
        assert statistics is not None
        assert (statistics.dropped, statistics.sent_back) == (1 - number, 0)
    send(brisk, topic, [b"new"])
    chosen = options(broadcasting=True, offsets_file=files[1])
    with PushConsumer(brisk, group, [topic], logs[1], chosen):
        until(lambda: len(logs[1].seen) == 4)
    assert logs[1].bodies[-1] == b"new"
    assert committed(brisk, group, topic) == 0


def test_tags_are_compared_as_text_and_a_group_may_begin_at_the_end_or_at_a_time(
    brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    # Java's hash of both tags is the same.
    send(brisk, topic, [b"wanted"], tags="Aa")
    send(brisk, topic, [b"alike"], tags="BB")
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    send(brisk, topic, [b"late"], tags="Aa")
    first, timed, last = Log(), Log(), Log()
    tags = {topic: "Aa || other"}
    with (
        PushConsumer(brisk, f"{topic}-first", tags, first, options()) as filtering,
        PushConsumer(brisk, f"{topic}-time", tags, timed, options(start=between)),
        PushConsumer(brisk, f"{topic}-last", tags, last, options(start="last")),
    ):
        until(lambda: len(first.seen) == 2 and len(timed.seen) == 1)
        send(brisk, topic, [b"new"], tags="Aa")
        until(lambda: first.bodies == [b"wanted", b"late", b"new"], lambda: first.bodies)
        until(lambda: timed.bodies == [b"late", b"new"], lambda: timed.bodies)
        until(lambda: last.bodies == [b"new"], lambda: last.bodies)
        until(lambda: committed(brisk, f"{topic}-first", topic) == 4)
        statistics = filtering.statistics()
        assert statistics is not None
        assert statistics.filtered == 1


def test_what_waits_is_bounded_and_offsets_are_committed_without_holes(
    brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    send(brisk, topic, [b"%d" % number for number in range(500)])
    go_on = threading.Event()
    seen: list[int] = []

    def listener(message: StoredMessage) -> None:
        if message.queue_offset == 3:
            go_on.wait(20)
        seen.append(message.queue_offset)

    chosen = options(concurrency=2, pull_messages=10, max_messages=1000, max_span=50)
    with PushConsumer(brisk, f"{topic}-g", [topic], listener, chosen) as consumer:
        until(lambda: len(seen) >= 50)
        time.sleep(0.2)
        statistics = consumer.statistics()
        assert statistics is not None
        assert statistics.positions[client_queue(brisk, topic)] == 3
        assert statistics.running == 1
        assert statistics.longest_running > timedelta(milliseconds=200)
        assert max(seen) < 3 + 50 + 10
        assert committed(brisk, f"{topic}-g", topic) == 3
        go_on.set()
        until(lambda: committed(brisk, f"{topic}-g", topic) == 500)
    assert sorted(seen) == list(range(500))


def test_bytes_that_wait_are_bounded_and_a_listener_may_end_its_consumer(
    brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    send(brisk, topic, [b"x" * 1024] * 400)
    begun, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def listener(message: StoredMessage) -> None:
        begun.set()
        go_on.wait(20)
        seen.append(message.queue_offset)
        if len(seen) == 300:
            consumer.close_soon()

    chosen = options(concurrency=1, max_bytes=100_000, pull_messages=20, pull_bytes=20_000)
    consumer = PushConsumer(brisk, f"{topic}-g", [topic], listener, chosen)
    runner = threading.Thread(target=consumer.run, daemon=True)
    runner.start()
    assert begun.wait(10)

    def full() -> bool:
        statistics = consumer.statistics()
        return statistics is not None and statistics.buffered_bytes > 60_000

    until(full)
    time.sleep(0.1)
    statistics = consumer.statistics()
    assert statistics is not None
    # Three queues share it, one of them the empty retry topic's; each may have one pull more.
    assert statistics.buffered_bytes < 100_000 + 3 * 32 * 1300
    go_on.set()
    runner.join(20)
    assert not runner.is_alive()
    assert 300 <= len(seen) < 400
    assert committed(brisk, f"{topic}-g", topic) == len(seen)


def test_a_member_whose_lock_was_taken_begins_anew_behind_the_thief(
    brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-g"
    queue = client_queue(brisk, topic)
    send(brisk, topic, [b"0"])
    log = Log()
    with PushConsumer(brisk, group, [topic], log, options(orderly=True)) as consumer:
        until(lambda: committed(brisk, group, topic) == 1)
        (member,) = Admin(brisk).group_members(group)

        def ask(code: RequestCode, client_id: str) -> Buffer:
            body = LockRequest(consumer_group=group, client_id=client_id, mq_set=[queue])
            return brisk.ask_broker(queue.broker, lambda: Command(code, {}, dumps(body))).payload

        def is_stolen() -> bool:
            ask(RequestCode.UNLOCK_BATCH_MQ, member)
            answer = ask(RequestCode.LOCK_BATCH_MQ, "thief")
            return bool(loads(answer, LockResult).granted)

        # The member's renewal may come between the two.
        until(is_stolen)
        # It notices with the renewal, touches nothing, and asks for the lock again.
        time.sleep(0.3)
        send(brisk, topic, [b"1", b"2", b"3"])
        until(lambda: queue not in consumer.assignment())
        assert log.bodies == [b"0"]
        # The thief gets through two of the three.
        PullConsumer(brisk, group).commit({queue: 3})
        ask(RequestCode.UNLOCK_BATCH_MQ, "thief")
        until(lambda: log.bodies == [b"0", b"3"], lambda: log.bodies)


def client_queue(client: Client, topic: str) -> MessageQueue:
    (queue,) = client.queues(topic)
    return queue


def test_a_reset_by_the_administration_reaches_a_running_member(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-g"
    send(brisk, topic, [b"1", b"2", b"3"])
    log = Log()
    with PushConsumer(brisk, group, [topic], log, options()):
        until(lambda: committed(brisk, group, topic) == 3)
        fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        brisk.ask_broker(
            "broker-a",
            lambda: Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**fields, "queueId": "-1"}),
        )
        # It hears of it with its next pull: a message ends the one that waits.
        send(brisk, topic, [b"4"])
        again = {b"1": 2, b"2": 2, b"3": 2}
        until(lambda: again.items() <= Counter(log.bodies).items(), lambda: log.bodies)
        until(lambda: committed(brisk, group, topic) == 4)


def test_listeners_are_limited_in_time_and_close_waits_for_what_runs(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-g"
    send(brisk, topic, [b"slow"])
    begun, ended = threading.Event(), threading.Event()

    def listener(message: StoredMessage) -> None:
        begun.set()
        time.sleep(0.3)
        ended.set()

    with PushConsumer(brisk, group, [topic], listener, options()):
        assert begun.wait(10)
    assert ended.is_set()
    assert committed(brisk, group, topic) == 1
    seen: list[int] = []

    async def endless(message: StoredMessage) -> None:
        seen.append(message.reconsume_times)
        if not message.reconsume_times:
            await asyncio.sleep(60)

    send(brisk, topic, [b"endless"])
    hasty = options(consume_timeout=timedelta(milliseconds=50), retry_delay=SECOND)
    with PushConsumer(brisk, group, [topic], endless, hasty) as consumer:
        until(lambda: seen == [0, 1])
        statistics = consumer.statistics()
        assert statistics is not None
        assert (statistics.timed_out, statistics.failed) == (1, 0)
    assert "took longer than 0.05 s on topic" in caplog.text


def test_without_a_listener_messages_are_iterated_and_settled_one_by_one(
    cluster: Cluster, brisk: Client, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-g"
    send(brisk, topic, [b"%d" % number for number in range(5)])
    with PushConsumer(brisk, group, [topic], options=options()) as consumer:
        found: list[bytes] = []
        for delivery in consumer:
            with delivery as message:
                found.append(message.body)
            if len(found) == 3:
                break
    # The other two were handed out, but nobody looked at them.
    assert committed(brisk, group, topic) == 3
    assert found == [b"0", b"1", b"2"]

    async def rest() -> list[bytes]:
        async with AsyncClient(cluster.namesrv) as client:
            consumer = AsyncPushConsumer(client, group, [topic], options=options())
            found = []
            async for delivery in consumer:
                found.append(delivery.message.body)
                delivery.ack()
                if len(found) == 2:
                    await consumer.close()
            return found

    assert asyncio.run(rest()) == [b"3", b"4"]
    assert committed(brisk, group, topic) == 5


def test_what_cannot_work_is_refused(brisk: Client, make_topic: MakeTopic) -> None:
    with pytest.raises(ConfigurationError, match="subscribes to no topic"):
        PushConsumer(brisk, "g", [])
    with pytest.raises(ConfigurationError, match="subscribes to no topic"):
        PushConsumer(brisk, "g", "lines")
    with pytest.raises(TopicNotFoundError):
        PushConsumer(brisk, "g", ["not-there"], Log()).run()
    with pytest.raises(ConfigurationError, match="has a listener"):
        next(iter(PushConsumer(brisk, "g", [make_topic(queues=1)], Log())))
    with pytest.raises(SettingsError, match="concurrency is 0"):
        PushOptions(concurrency=0)
    with pytest.raises(SettingsError, match=r"suspend is 0 s: .* equal to 1 ms"):
        PushOptions(suspend=timedelta(0))
    with pytest.raises(ConfigurationError, match="no delay level 19"):
        Retry(level=19)
