from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.broker import spawn_broker
from headrace.client import Admin, Client, Message, MessageQueue, Producer, PullConsumer
from headrace.errors import OffsetExpiredError, SettingsError, TopicNotFoundError
from headrace.spark.rocketmq.options import Reading, ReadOptions, read_options
from headrace.spark.rocketmq.positions import offsets_from_json, offsets_to_json
from headrace.spark.rocketmq.source import BatchPlanner, ReadRange, StreamPlanner
from tests.clusters import Cluster

MakeTopic = Callable[..., str]
MakeOptions = Callable[..., ReadOptions]

_numbers = itertools.count(1)


@pytest.fixture
def client(embedded: Cluster) -> Iterator[Client]:
    with Client(embedded.namesrv) as connected:
        yield connected


@pytest.fixture
def topic(client: Client) -> Callable[..., str]:
    def make(queues: int = 2, name: str | None = None) -> str:
        name = name or f"plan-{os.getpid()}-{next(_numbers)}"
        Admin(client).create_topic(name, queues=queues)
        return name

    return make


@pytest.fixture
def options(embedded: Cluster) -> Callable[..., ReadOptions]:
    def make(reading: Reading = "stream", **given: str) -> ReadOptions:
        # Every call of a planner looks for new queues.
        quick = {"rocketmq.routeRefresh": "0 s", "rocketmq.namesrv": embedded.namesrv}
        return read_options({**quick, **given}, reading)

    return make


def send(client: Client, topic: str, queue: int, count: int) -> None:
    messages = [Message(topic=topic, body=b"%d" % number) for number in range(count)]
    Producer(client).send_batch(messages, MessageQueue(topic, "broker-a", queue))


def spans(ranges: list[ReadRange]) -> dict[int, tuple[int, int]]:
    return {one.queue.queue_id: (one.begin, one.end) for one in ranges}


def test_a_query_starts_at_the_end_by_default(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    send(client, name, 0, 3)
    planner = StreamPlanner(options(subscribe=name))
    start = planner.initial()
    assert offsets_to_json(start) == {name: {"broker-a@0": 3, "broker-a@1": 0}}
    assert planner.latest(start, None) == start
    send(client, name, 1, 2)
    end = planner.latest(start, None)
    assert spans(planner.ranges(start, end)) == {1: (0, 2)}


def test_a_limit_is_shared_in_proportion(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    send(client, name, 0, 30)
    send(client, name, 1, 10)
    planner = StreamPlanner(options(subscribe=name, startingOffsets="earliest"))
    start = planner.initial()
    end = planner.latest(start, 20)
    assert spans(planner.ranges(start, end)) == {0: (0, 15), 1: (0, 5)}
    reported = planner.reported()
    assert reported is not None
    assert offsets_to_json(reported) == {name: {"broker-a@0": 30, "broker-a@1": 10}}


def test_offsets_survive_as_json(client: Client, topic: MakeTopic, options: MakeOptions) -> None:
    name = topic()
    send(client, name, 1, 4)
    end = StreamPlanner(options(subscribe=name)).initial()
    assert offsets_from_json(offsets_to_json(end)) == end


def test_new_queues_join_from_their_first_message(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic(queues=1)
    planner = StreamPlanner(options(subscribe=name))
    start = planner.initial()
    topic(queues=3, name=name)
    send(client, name, 2, 5)
    end = planner.latest(start, None)
    assert spans(planner.ranges(start, end)) == {2: (0, 5)}


def test_new_topics_that_match_join(client: Client, topic: MakeTopic, options: MakeOptions) -> None:
    first = topic()
    planner = StreamPlanner(options(subscribePattern=re.escape(first) + "x*"))
    start = planner.initial()
    second = topic(name=f"{first}xx")
    topic(name=f"{first}y")
    send(client, second, 1, 1)
    (found,) = planner.ranges(start, planner.latest(start, None))
    assert found == ReadRange(MessageQueue(second, "broker-a", 1), 0, 1)


def test_a_pattern_never_means_topics_of_the_system(options: MakeOptions) -> None:
    queues = StreamPlanner(options(subscribePattern=".*")).initial()
    names = {queue.topic for queue in queues}
    assert not names & {"TBW102", "DefaultCluster", "broker-a", "SELF_TEST_TOPIC"}


def test_assigned_queues_and_no_others_are_read(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic(queues=3)
    for queue in range(3):
        send(client, name, queue, 1)
    given = options(assign=f'{{"{name}": [0, "broker-a@2"]}}', startingOffsets="earliest")
    planner = StreamPlanner(given)
    start = planner.initial()
    assert spans(planner.ranges(start, planner.latest(start, None))) == {0: (0, 1), 2: (0, 1)}


def test_an_assigned_queue_that_does_not_exist_is_named(
    topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic(queues=1)
    with pytest.raises(SettingsError, match=f"queue 4 of topic '{name}'"):
        StreamPlanner(options(assign=f'{{"{name}": [0, 4]}}')).initial()


def test_what_arrives_after_the_freeze_is_left(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    send(client, name, 0, 3)
    planner = StreamPlanner(options(subscribe=name, startingOffsets="earliest"))
    start = planner.initial()
    planner.freeze()
    send(client, name, 0, 3)
    send(client, name, 1, 3)
    middle = planner.latest(start, 2)
    end = planner.latest(middle, 2)
    assert spans(planner.ranges(start, end)) == {0: (0, 3)}
    assert planner.latest(end, 2) == end


def test_the_groups_offsets_follow(client: Client, topic: MakeTopic, options: MakeOptions) -> None:
    name = topic()
    send(client, name, 0, 3)
    group = f"follows-{name}"
    planner = StreamPlanner(options(subscribe=name, groupId=group, startingOffsets="earliest"))
    start = planner.initial()
    end = planner.latest(start, None)
    assert sum(one.lag for one in Admin(client).group_progress(group).values()) == 3
    planner.commit(end)
    assert sum(one.lag for one in Admin(client).group_progress(group).values()) == 0


def test_the_groups_offsets_follow_without_a_commit_when_the_next_batch_is_planned(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    send(client, name, 0, 3)
    group = f"follows-{name}"
    planner = StreamPlanner(options(subscribe=name, groupId=group, startingOffsets="earliest"))
    end = planner.latest(planner.initial(), None)
    planner.latest(end, None)
    assert PullConsumer(client, group).committed(MessageQueue(name, "broker-a", 0)) == 3


def test_a_topic_made_anew_is_loss(client: Client, topic: MakeTopic, options: MakeOptions) -> None:
    name = topic(queues=1)
    send(client, name, 0, 5)
    strict = StreamPlanner(options(subscribe=name))
    lenient = StreamPlanner(options(subscribe=name, failOnDataLoss="false"))
    start = strict.initial()
    Admin(client).delete_topic(name)
    topic(queues=1, name=name)
    send(client, name, 0, 2)
    with pytest.raises(OffsetExpiredError, match="read up to offset 5, but now ends at 2"):
        strict.latest(start, None)
    end = lenient.latest(start, None)
    assert spans(lenient.ranges(start, end)) == {0: (0, 2)}


def test_a_topic_that_is_missing_for_long_is_loss(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    start = StreamPlanner(options(subscribe=name)).initial()
    strict = StreamPlanner(options(subscribe=name, **{"rocketmq.retryTimeout": "200 ms"}))
    lenient = StreamPlanner(options(subscribe=name, failOnDataLoss="false"))
    Admin(client).delete_topic(name)
    # A broker that restarts is missing for a moment, too.
    assert strict.latest(start, None) == start
    time.sleep(0.25)
    with pytest.raises(TopicNotFoundError, match=f"topic '{name}' of a running query"):
        strict.latest(start, None)
    assert lenient.latest(start, None) == start


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    broker = spawn_broker(tmp_path, port=0)
    again = broker
    port = int(broker.address.rpartition(":")[2])
    try:
        with Client(broker.address) as client:
            Admin(client).create_topic("lines", queues=1)
            send(client, "lines", 0, 3)
            given = {"rocketmq.namesrv": broker.address, "rocketmq.routeRefresh": "0 s"}
            query = read_options({**given, "subscribe": "lines"}, "stream")
            planner = StreamPlanner(query)
            start = planner.initial()
            broker.kill()
            with ThreadPoolExecutor(1) as beside:
                planned = beside.submit(planner.latest, start, None)
                again = spawn_broker(tmp_path, port=port)
                assert planned.result(timeout=30) == start
    finally:
        again.stop()


def test_a_batch_reads_what_is_there_now(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    send(client, name, 1, 7)
    assert spans(BatchPlanner(options("batch", subscribe=name)).ranges()) == {1: (0, 7)}


def test_a_batch_is_cut_into_more_tasks_on_request(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    send(client, name, 1, 8)
    ranges = BatchPlanner(options("batch", subscribe=name, minPartitions="4")).ranges()
    assert [(one.begin, one.end) for one in ranges] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_a_batch_goes_from_offsets_to_offsets(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic()
    for queue in range(2):
        send(client, name, queue, 7)
    given = options(
        "batch",
        subscribe=name,
        startingOffsets=f'{{"{name}": {{"0": 2, "broker-a@1": -2}}}}',
        endingOffsets=f'{{"{name}": {{"0": 5, "1": -1}}}}',
    )
    assert spans(BatchPlanner(given).ranges()) == {0: (2, 5), 1: (0, 7)}


def test_offsets_must_name_every_queue(topic: MakeTopic, options: MakeOptions) -> None:
    name = topic()
    given = options(subscribe=name, startingOffsets=f'{{"{name}": {{"0": 0}}}}')
    with pytest.raises(SettingsError, match=f"does not name queue {name}@broker-a@1"):
        StreamPlanner(given).initial()


def test_offsets_of_other_topics_are_refused(topic: MakeTopic, options: MakeOptions) -> None:
    given = options(subscribe=topic(), startingOffsets='{"other": {"0": 0}}')
    with pytest.raises(SettingsError, match="names topic 'other', which is not read"):
        StreamPlanner(given).initial()


def test_an_offset_outside_of_its_queue_is_refused_or_moved(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic(queues=1)
    send(client, name, 0, 3)
    beyond = {"subscribe": name, "startingOffsets": f'{{"{name}": {{"0": 9}}}}'}
    with pytest.raises(OffsetExpiredError, match="has offset 9 for queue"):
        StreamPlanner(options(**beyond)).initial()
    moved = StreamPlanner(options(**beyond, failOnDataLoss="false")).initial()
    assert list(moved.values()) == [3]


def test_positions_by_store_time(client: Client, topic: MakeTopic, options: MakeOptions) -> None:
    name = topic(queues=1)
    queue = MessageQueue(name, "broker-a", 0)
    stored = []
    for offset in range(3):
        send(client, name, 0, 1)
        stored.append(Admin(client).message(queue, offset).stored)
        # The next one must not share its millisecond.
        time.sleep(0.005)
    by_queue = f'{{"{name}": {{"0": {stored[1]}}}}}'
    for given in (
        {"startingTimestamp": str(stored[1])},
        {"startingOffsetsByTimestamp": by_queue},
    ):
        ranges = BatchPlanner(options("batch", subscribe=name, **given)).ranges()
        assert spans(ranges) == {0: (1, 3)}
    given = {"endingTimestamp": str(stored[2])}
    assert spans(BatchPlanner(options("batch", subscribe=name, **given)).ranges()) == {0: (0, 2)}


def test_a_time_without_a_later_message_is_an_error_or_the_end(
    client: Client, topic: MakeTopic, options: MakeOptions
) -> None:
    name = topic(queues=1)
    send(client, name, 0, 3)
    late = {"subscribe": name, "startingTimestamp": str(int(time.time() * 1000) + 3_600_000)}
    with pytest.raises(SettingsError, match="has no message stored at this time or later"):
        StreamPlanner(options(**late)).initial()
    given = options(**late, startingOffsetsByTimestampStrategy="latest")
    assert list(StreamPlanner(given).initial().values()) == [3]


def test_a_missing_topic_is_named_at_the_start(options: MakeOptions) -> None:
    with pytest.raises(TopicNotFoundError, match="topic 'nowhere' does not exist"):
        StreamPlanner(options(subscribe="nowhere", failOnDataLoss="false")).initial()
