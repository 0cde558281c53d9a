"""A name server beside the broker, and somebody who looks after both as RocketMQ's tools do.

The broker announces itself there.  What an answer promises must hold: what is durable is there after
every crash, and what is only remembered for as long as no broker was started anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client import Admin, Client, ClientSettings, Message, MessageQueue, Producer
from headrace.errors import HeadraceError, TopicNotFoundError
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import (
    ClientConfig,
    ConsumerData,
    Heartbeat,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.routes import (
    DataVersion,
    MappingDetail,
    MappingItem,
    QueueData,
    TopicConfig,
    TopicConfigList,
    TopicRoute,
    body_checksum,
    dumps,
    loads,
)
from tests.broker.wire import pull_fields, registration
from tests.simulation.checks import require
from tests.simulation.cluster import HOST, PORT, EmbeddedCluster
from tests.simulation.retention import UNDER_WAY
from tests.simulation.threads import persist, sleep
from tests.simulation.world import ViolationError, World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulation.network import Network

__all__ = ["Tools"]

T = TypeVar("T")

_BROKER, _NAMES = "broker-a", "names"
_TOPIC, _STATIC, _GROUP, _MEMBER = "tooled", "static", "toolers", "tool-1"
_QUEUES = 2
#: How an answer may end that says what there is to pull, or that something cannot be.
_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_REFUSED = (
    ResponseCode.SUCCESS,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.CONSUMER_NOT_ONLINE,
)


class Tools:
    """A name server, and whoever asks it and the broker.

    Parameters
    ----------
    world, network
        Where they are.
    broker
        Who announces itself at the name server.
    folder
        For the name server's files: it is a broker, too.
    client
        Settings of whoever asks.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        broker: EmbeddedCluster,
        folder: Path,
        client: ClientSettings,
    ) -> None:
        self._client = client
        self.failure: ViolationError | None = None
        self._world = world
        self._chance = random.Random(f"{world.seed} tools")
        settings = replace(broker.settings, broker_name=_NAMES, broker_expiry=timedelta(seconds=4))
        self.names = EmbeddedCluster(world, network, folder, settings, _NAMES, PORT + 2)
        broker.settings = replace(
            broker.settings,
            name_servers=(self.names.address,),
            register_interval=timedelta(seconds=1),
        )
        #: What the name server has promised to keep.
        self._kept: dict[str, str] = {}
        #: The batches that a broker has acknowledged.
        self._batches: list[list[str]] = []
        self._at = "nothing"
        self._is_over = False

    def plan(self) -> None:
        """Choose when everything happens."""
        world = self._world
        world.after(0.1, self.names.start)
        world.at(self._chance.uniform(0.5, 2.0), self._begin)

    def _crash(self) -> None:
        self.names.crash(self._chance.uniform(0.1, 1.0), power=self._chance.random() < 0.5)

    def are_done(self) -> bool:
        """Tell whether everything was asked."""
        return self._is_over

    def disagreement(self) -> str:
        """Say what is missing."""
        return f"the tool has not come to the end of {self._at}"

    def _begin(self) -> None:
        self._world.start(self._world.process("tool", "apart"), self._run)

    def _run(self) -> None:
        try:
            with Client(self.names.address, self._client) as client:
                desk = _Desk(self._world, client)
                brokers = [_BROKER, _NAMES]
                make = partial(desk.admin.create_topic, _TOPIC, queues=_QUEUES, brokers=brokers)
                desk.persist(make)
                visits = [
                    self._keep_keys,
                    self._withdraw,
                    self._send_batches,
                    self._pull,
                    self._ask_members,
                    self._follow_progress,
                    self._change_settings,
                    self._make_topics,
                    self._register,
                ]
                self._chance.shuffle(visits)
                for visit in visits:
                    self._at = visit.__name__.strip("_")
                    self._world.tell(f"the tool comes to {self._at}")
                    if self._chance.random() < 0.3:
                        self._world.after(self._chance.uniform(0.0, 0.5), self._crash)
                    desk.persist(partial(visit, desk))
                    sleep(self._world, self._chance.choice((0.0, 0.3, 1.0)))
                desk.persist(partial(self._look_at_the_end, desk))
        except ViolationError as error:
            self.failure = error
        self._is_over = True

    # The name server

    def _keep_keys(self, desk: _Desk) -> None:
        """Keep keys at the name server: they outlive it."""
        for number in range(self._chance.randint(1, 4)):
            place = {"namespace": "tools", "key": str(self._chance.randrange(3))}
            if self._chance.random() < 0.2:
                desk.alone(partial(desk.ask, _NAMES, RequestCode.DELETE_KV_CONFIG, **place))
                self._kept.pop(place["key"], None)
            else:
                value = f"{number}-{self._chance.random()}"
                put = partial(desk.ask, _NAMES, RequestCode.PUT_KV_CONFIG, value=value, **place)
                desk.alone(put)
                self._kept[place["key"]] = value
            self._look_at_keys(desk)

    def _look_at_keys(self, desk: _Desk) -> None:
        asked = partial(desk.ask, _NAMES, RequestCode.GET_KV_CONFIG, namespace="tools")
        for key in "012":
            if key in self._kept:
                found = asked(key=key, expect=_REFUSED).ext.get("value")
                require(found == self._kept[key], f"key {key} is {found}, not {self._kept[key]}")
            else:
                desk.refuses(_NAMES, RequestCode.GET_KV_CONFIG, namespace="tools", key=key)
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        answer = desk.ask(_NAMES, code, namespace="tools", expect=_REFUSED)
        table = loads(answer.payload or b"{}", dict[str, dict[str, str]]).get("table", {})
        require(table == self._kept, f"keys are {table}, not {self._kept}")

    def _withdraw(self, desk: _Desk) -> None:
        """Let routes say that a broker takes nothing, and that it does again."""
        for name in (_BROKER, _NAMES):

            def withdraw(name: str = name) -> tuple[bool, bool]:
                desk.ask(_NAMES, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=name)
                before = desk.takes(_TOPIC, name)
                desk.ask(_NAMES, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName=name)
                return before, desk.takes(_TOPIC, name)

            takes = desk.in_one_life(withdraw)
            _expect(takes == (False, True), f"routes say {takes} of {name}")

    def _register(self, desk: _Desk) -> None:
        """Come as a broker of its own: it is known until it goes, or is silent for too long."""
        place = {"brokerName": "third", "brokerAddr": f"{HOST}:1", "clusterName": "c3"}
        place |= {"brokerId": "0"}
        queues = [QueueData(broker_name="third", read_queue_nums=1, write_queue_nums=1)]

        def come() -> tuple[set[str], set[str], set[str]]:
            desk.register(place, {_TOPIC, "theirs"})
            version = dumps(DataVersion(counter=1))
            told = desk.ask(_NAMES, RequestCode.QUERY_DATA_VERSION, version, **place)
            _expect(told.ext["changed"] == "false", "the name server asks for topics once more")
            desk.ask(_NAMES, RequestCode.BROKER_HEARTBEAT, **place)
            group = desk.ask(_NAMES, RequestCode.GET_BROKER_MEMBER_GROUP, **place)
            members = bytes(group.payload).decode()
            _expect(place["brokerAddr"] in members, f"members are {members}")
            here = desk.holders(_TOPIC)
            desk.ask(_NAMES, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="theirs", clusterName="c3")
            _expect(not desk.holders("theirs"), "a topic is known that was deleted")
            body = dumps(TopicRoute(queue_datas=queues))
            desk.ask(_NAMES, RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="theirs")
            added = desk.holders("theirs")
            if self._chance.random() < 0.5:
                desk.ask(_NAMES, RequestCode.UNREGISTER_BROKER, **place)
            else:
                sleep(self._world, 8.0)
            return here, added, desk.holders(_TOPIC)

        told = desk.in_one_life(come)
        both = {_BROKER, _NAMES}
        _expect(told == (both | {"third"}, {"third"}, both), f"holders are {told}")
        wrong = desk.register(place | {"brokerName": _NAMES}, set(), expect=_REFUSED)
        require(wrong.code, "a broker may have the name server's name")

    # Messages

    def _send_batches(self, desk: _Desk) -> None:
        """Send batches, each of which is there as a whole."""
        producer = Producer(desk.client)
        for _ in range(self._chance.randint(1, 5)):
            number = len(self._batches)
            names = [f"{number}.{at}" for at in range(self._chance.randint(1, 5))]
            batch = [Message(topic=_TOPIC, body=name.encode(), tags="A") for name in names]
            desk.persist(partial(producer.send_batch, batch))
            self._batches.append(names)
        delayed = {"b": _TOPIC, "e": 0, "f": 0, "g": 0, "h": 0, "m": "true", "i": "DELAY\x013\x02"}
        desk.refuses(_BROKER, RequestCode.SEND_BATCH_MESSAGE, **delayed)
        desk.refuses(_BROKER, RequestCode.SEND_BATCH_MESSAGE, **delayed | {"e": 9, "i": ""})

    def _pull(self, desk: _Desk) -> None:
        """Pull as no client of ours would: whatever cannot be says so, and where to go on."""
        for queue in desk.queues():

            def answers(queue: MessageQueue = queue) -> tuple[int, Command, Command, Command]:
                end = desk.end(queue)
                at_end = desk.pull(queue, end, expect=_PULLED)
                beyond = desk.pull(queue, end + 5, expect=_PULLED)
                return end, at_end, beyond, desk.pull(queue, 0, subscription="B", expect=_PULLED)

            end, at_end, beyond, of_others = desk.in_one_life(answers)
            told = [int(each.ext["nextBeginOffset"]) for each in (at_end, beyond)]
            require(told == [end, end], f"{queue} goes on at {told}, not at {end}")
            require(beyond.code == ResponseCode.PULL_OFFSET_MOVED, f"beyond is {beyond.code}")
            require(not of_others.payload, f"{queue} gives messages of other tags")
        for wrong in (
            {"sysFlag": 0, "consumerGroup": "nobody"},
            {"queueId": 9},
            {"expressionType": "SQL92", "subscription": "a > 1"},
        ):
            refused = desk.pull(queue, 0, expect=_REFUSED, **wrong)
            require(refused.code, f"a pull with {wrong} is answered")
        body = dumps(
            ClientConfig(subscription_data=SubscriptionData(topic=_TOPIC, expression_type="SQL92"))
        )
        desk.refuses(_BROKER, RequestCode.CHECK_CLIENT_CONFIG, body)

    # Groups

    def _ask_members(self, desk: _Desk) -> None:
        """Be a member of a group, and have the broker ask it what a tool wants to know."""
        beat = Heartbeat(
            client_id=_MEMBER,
            producer_data_set=[ProducerData(group_name=_GROUP)],
            consumer_data_set=[
                ConsumerData(
                    group_name=_GROUP, subscription_data_set=[SubscriptionData(topic=_TOPIC)]
                )
            ],
        )
        asked = {"consumerGroup": _GROUP, "clientId": _MEMBER}
        told: list[int] = []

        def answer(command: Command) -> Command:
            told.append(command.code)
            return command.reply(ResponseCode.SUCCESS, None, None, b'{"messageQueueTable":{}}')

        questions = (
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        )
        endings = [desk.client.asynchronous.on_request(code, answer) for code in questions]

        def ask() -> list[Any]:
            desk.ask(_BROKER, RequestCode.HEART_BEAT, dumps(beat))
            desk.ask(_BROKER, RequestCode.GET_CONSUMER_RUNNING_INFO, **asked)
            desk.ask(_BROKER, RequestCode.CONSUME_MESSAGE_DIRECTLY, **asked)
            status = desk.json(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=_TOPIC, group=_GROUP
            )
            members = desk.json(RequestCode.GET_CONSUMER_CONNECTION_LIST, **asked)
            producers = desk.json(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=_GROUP)
            everybody = desk.json(RequestCode.GET_ALL_PRODUCER_INFO)
            groups = desk.json(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=_TOPIC)
            topics = desk.json(RequestCode.QUERY_TOPICS_BY_CONSUMER, group=_GROUP)
            wants = desk.json(
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group=_GROUP, topic=_TOPIC
            )
            share = {"topic": _TOPIC, "consumerGroup": _GROUP, "clientId": _MEMBER}
            body = dumps(share | {"strategyName": "AVG"})
            mine = loads(
                desk.ask(_BROKER, RequestCode.QUERY_ASSIGNMENT, body).payload, dict[str, Any]
            )
            return [
                list(status["consumerTable"]),
                [each["clientId"] for each in members["connectionSet"]],
                [each["clientId"] for each in producers["connectionSet"]],
                [each["clientId"] for each in everybody["data"][_GROUP]],
                _GROUP in groups["groupList"],
                topics["topicList"],
                wants["subscriptionData"]["topic"],
                len(mine["messageQueueAssignments"]),
            ]

        try:
            found = desk.in_one_life(ask)
        finally:
            for end in endings:
                end()
        expected = [[_MEMBER], [_MEMBER], [_MEMBER], [_MEMBER], True, [_TOPIC], _TOPIC, _QUEUES]
        require(found == expected, f"the broker says of its members {found}")
        require(set(told) == set(questions), f"the member was only asked {set(told)}")
        leave = {"clientID": _MEMBER, "consumerGroup": _GROUP, "producerGroup": _GROUP}
        desk.alone(partial(desk.ask, _BROKER, RequestCode.UNREGISTER_CLIENT, **leave))
        desk.refuses(_BROKER, RequestCode.GET_CONSUMER_CONNECTION_LIST, **asked)
        desk.refuses(_BROKER, RequestCode.GET_CONSUMER_RUNNING_INFO, **asked)

    def _follow_progress(self, desk: _Desk) -> None:
        """Note how far a group is, let another begin there, and go back."""
        queue = {"topic": _TOPIC, "queueId": 0}
        other = f"{_GROUP}-too"

        def go() -> list[tuple[int, int]]:
            end = desk.end(MessageQueue(_TOPIC, _BROKER, 0))
            desk.ask(
                _BROKER,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=_GROUP,
                commitOffset=end,
                **queue,
            )
            stats = desk.progress(_GROUP)
            desk.ask(_BROKER, RequestCode.CLONE_GROUP_OFFSET, srcGroup=_GROUP, destGroup=other)
            cloned = desk.progress(other)
            span = desk.json(RequestCode.QUERY_CONSUME_TIME_SPAN, topic=_TOPIC, group=_GROUP)
            late = span["consumeTimeSpanSet"][0]["delayTime"]
            everybody = desk.json(RequestCode.GET_BROKER_CONSUME_STATS)["consumeStatsList"]
            listed = any(_GROUP in row for row in everybody)
            stored = desk.ask(_BROKER, RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
            is_empty = int(stored.ext["timestamp"]) < 0
            back = {"group": other, "topic": _TOPIC, "timestamp": 0, "isForce": "true"}
            desk.ask(_BROKER, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **back)
            return [
                (stats, end),
                (cloned, end),
                (late, 0),
                (listed, True),
                (is_empty, end == 0),
                (desk.progress(other), 0),
            ]

        for found, expected in desk.in_one_life(go):
            require(found == expected, f"of a group's progress {found} is told for {expected}")
        desk.refuses(_BROKER, RequestCode.CLONE_GROUP_OFFSET, srcGroup="none", destGroup=other)

    # Settings

    def _change_settings(self, desk: _Desk) -> None:
        """Change settings: all that were named, or none."""
        name = "defaultTopicQueueNums"

        def change() -> tuple[str, str, bool]:
            body = f"# by hand\n{name}=3\n".encode()
            desk.ask(_BROKER, RequestCode.UPDATE_BROKER_CONFIG, body)
            changed = desk.admin.broker_config(_BROKER)[name]
            for wrong in (f"{name}=5\nbrokerName=x", f"{name}=5\n{name}=0"):
                desk.refuses(_BROKER, RequestCode.UPDATE_BROKER_CONFIG, wrong.encode())
            kept = desk.admin.broker_config(_BROKER)[name]
            desk.ask(_BROKER, RequestCode.UPDATE_BROKER_CONFIG, f"{name}=8".encode())
            desk.ask(_NAMES, RequestCode.UPDATE_NAMESRV_CONFIG, b"a=b\n#c=d")
            told = desk.ask(_NAMES, RequestCode.GET_NAMESRV_CONFIG).payload
            return changed, kept, b"\na=b\n" in bytes(told)

        found = desk.in_one_life(change)
        require(found == ("3", "3", True), f"settings are {found}")
        desk.refuses(_BROKER, RequestCode.VIEW_BROKER_STATS_DATA, statsName="a", statsKey="b")
        for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
            desk.ask(_BROKER, code)

    def _make_topics(self, desk: _Desk) -> None:
        """Make topics in all the ways there are: each is there after every crash, until it goes."""
        names = ["list-0", "list-1"]
        configs = [TopicConfig(topic_name=name, write_queue_nums=1) for name in names]
        body = dumps(TopicConfigList(topic_config_list=configs))
        desk.alone(partial(desk.ask, _BROKER, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body))
        groups = [SubscriptionGroupConfig(group_name=f"{_GROUP}-{number}") for number in range(2)]
        listed = dumps({"groupConfigList": groups})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        desk.alone(partial(desk.ask, _BROKER, code, listed))
        swapped = {
            str(number): [MappingItem(queue_id=1 - number, bname=_BROKER)] for number in range(2)
        }
        detail = MappingDetail(
            topic=_STATIC, total_queues=2, bname=_BROKER, epoch=1, hosted_queues=swapped
        )
        fields = {"topic": _STATIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        make = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
        desk.alone(partial(desk.ask, _BROKER, make, dumps(detail), **fields))
        sent = Producer(desk.client).send
        place = MessageQueue(_STATIC, _BROKER, 0)
        desk.alone(partial(sent, Message(topic=_STATIC, body=b"s"), place))
        table = desk.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
        require({*names, _STATIC} <= set(table), f"topics are {sorted(table)}")
        known = desk.json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        require({each.group_name for each in groups} <= set(known), f"groups are {sorted(known)}")
        physical = desk.json(RequestCode.GET_TOPIC_STATS_INFO, topic=_STATIC)["offsetTable"]
        ends = sorted(each["maxOffset"] for each in physical.values())
        require(ends[0] == 0 and ends[1] > 0, f"the static topic ends at {ends}")
        for code in (
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.GET_ALL_DELAY_OFFSET,
        ):
            desk.json(code)
        named = desk.json(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster")["topicList"]
        require(set(names) <= set(named), f"topics of the cluster are {named}")
        for name in (*names, _STATIC):
            delete = partial(desk.ask, _BROKER, RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
            desk.alone(delete)
        left = {*names, _STATIC} & set(
            desk.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
        )
        require(not left, f"{left} are there after their deletion")

    # At the end

    def _look_at_the_end(self, desk: _Desk) -> None:
        """See that all is there that was promised."""
        # What was held up on its way is there by then, too.
        sleep(self._world, UNDER_WAY)
        self._look_at_keys(desk)
        there: list[str] = []
        for queue in desk.queues():
            lines = [message.body.decode() for message in desk.messages(queue)]
            while lines:
                number = int(lines[0].split(".")[0])
                names = self._batches[number]
                require(lines[: len(names)] == names, f"batch {number} is torn in {queue}: {lines}")
                there.append(str(number))
                lines = lines[len(names) :]
        missing = {str(number) for number in range(len(self._batches))} - set(there)
        require(not missing, f"batches {missing} were acknowledged, and are lost")


class _NotYetError(HeadraceError):
    """Something is not as it must be in the end; brokers come and go with their connections."""


def _expect(condition: bool, what: str) -> None:
    """Let a visit begin anew where something does not hold: it must at last."""
    if not condition:
        raise _NotYetError(what)


class _Desk:
    """What a tool has: a client, and ways of asking."""

    def __init__(self, world: World, client: Client) -> None:
        self.client = client
        self.admin = Admin(client)
        self._world = world
        self._retries = 0

    def ask(
        self,
        broker: str,
        code: RequestCode,
        body: bytes = b"",
        /,
        expect: Any = (0,),
        **ext: object,
    ) -> Command:
        """Ask a broker by its name, which must answer with one of these codes."""
        fields = {name: str(value) for name, value in ext.items()}
        return self.client.ask_broker(broker, lambda: Command(code, fields, body), expect=expect)

    def refuses(self, broker: str, code: RequestCode, body: bytes = b"", /, **ext: object) -> None:
        """Ask a broker for what cannot be."""
        answer = self.ask(broker, code, body, expect=_REFUSED, **ext)
        require(answer.code, f"{broker} does what {code.name} asks with {ext} {body!r}")

    def json(self, code: RequestCode, **ext: object) -> dict[str, Any]:
        """Ask the broker for something that it tells as JSON."""
        return loads(self.ask(_BROKER, code, **ext).payload, dict[str, Any])

    def persist(self, run: Callable[[], object]) -> None:
        """Do something until no error comes."""
        persist(self._world, "the tool", run)

    def alone(self, run: Callable[[], object]) -> None:
        """Do something durable: no earlier try is on its way any more when it is done."""
        self.persist(run)
        self._settle()

    def in_one_life(self, run: Callable[[], T]) -> T:
        """Do something between two looks that show the same lives of brokers, and no retry."""
        while True:
            self._settle()
            before = self._lives()
            found = run()
            if self._lives() == before and not self._has_retried():
                return found

    def _lives(self) -> list[str]:
        return [self.admin.broker_status(name)["bootTimestamp"] for name in (_BROKER, _NAMES)]

    def _has_retried(self) -> bool:
        return self.client.statistics().retries > self._retries

    def _settle(self) -> None:
        """Wait for what was held up on its way: who asked again may be answered twice."""
        while self._has_retried():
            self._retries = self.client.statistics().retries
            sleep(self._world, UNDER_WAY)

    def register(self, place: dict[str, str], topics: set[str], expect: Any = (0,)) -> Command:
        """Register a broker with its topics."""
        body = registration(sorted(topics), version=1)
        more = {"haServerAddr": f"{HOST}:2", "bodyCrc32": body_checksum(body)}
        return self.ask(_NAMES, RequestCode.REGISTER_BROKER, body, expect=expect, **more, **place)

    def holders(self, topic: str) -> set[str]:
        """Tell which brokers hold a topic, as the name server says."""
        try:
            route = self.client.route(topic, refresh=True)
        except TopicNotFoundError:
            return set()
        return {each.broker_name for each in route.queue_datas}

    def takes(self, topic: str, broker: str) -> bool:
        """Tell whether a broker takes messages of a topic, as the name server says."""
        route = self.client.route(topic, refresh=True)
        return any(
            each.broker_name == broker and bool(each.perm & Perm.WRITE)
            for each in route.queue_datas
        )

    def queues(self) -> list[MessageQueue]:
        """List all queues of the topic that the tool uses, of both brokers."""
        return [
            MessageQueue(_TOPIC, broker, number)
            for broker in (_BROKER, _NAMES)
            for number in range(_QUEUES)
        ]

    def end(self, queue: MessageQueue) -> int:
        """Tell where a queue ends."""
        ext = {"topic": queue.topic, "queueId": queue.queue_id}
        return int(self.ask(queue.broker, RequestCode.GET_MAX_OFFSET, **ext).ext["offset"])

    def pull(self, queue: MessageQueue, offset: int, /, expect: Any, **more: object) -> Command:
        """Pull from a queue, with whatever fields."""
        fields = pull_fields(_GROUP, queue.topic, queue.queue_id, offset) | more
        return self.ask(queue.broker, RequestCode.PULL_MESSAGE, expect=expect, **fields)

    def messages(self, queue: MessageQueue) -> list[StoredMessage]:
        """Read a queue to its end."""
        found: list[StoredMessage] = []
        while len(found) < self.end(queue):
            answer = self.pull(queue, len(found), expect=(0,))
            found += decode_messages(bytes(answer.payload))
        return found

    def progress(self, group: str) -> int:
        """Tell how far a group is in the first queue of the topic."""
        stats = self.json(RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=_TOPIC)
        (row,) = [row for key, row in stats["offsetTable"].items() if '"queueId":0' in key]
        return int(row["consumerOffset"])
