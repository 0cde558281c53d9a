"""The guard at the door: each request passes it before anything else happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from headrace.broker.access.accounts import AccessRules, Account, Permission, load_rules
from headrace.broker.requests import Refusals, Request, failure
from headrace.broker.topics import RETRY_PREFIX
from headrace.errors import HeadraceError, SettingsError
from headrace.protocol import transactions
from headrace.protocol.codes import RequestCode as Code, ResponseCode
from headrace.protocol.frames import ACCESS_KEY, Command, is_signed_with
from headrace.protocol.groups import Heartbeat, LockRequest
from headrace.protocol.routes import JsonBody

if TYPE_CHECKING:
    from headrace.broker.waiting import BackgroundWork


# Which request needs which permission: one table.

PUB, SUB = Permission.PUB, Permission.SUB
EITHER = PUB | SUB

_DEAD_PREFIX = "%DLQ%"
_SYSTEM = frozenset({"SCHEDULE_TOPIC_XXXX"})
_SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_")


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that an account must be allowed."""

    kind: Literal["topic", "group", "admin"]
    name: str = ""
    #: Any of these will do.
    permission: Permission = EITHER


ADMIN = Need("admin")

Finder: TypeAlias = "Callable[[Request], Iterator[Need]]"


def topic_need(name: str, permission: Permission) -> Need:
    """Return what is needed of a topic; a group's own topics belong to the group.

    >>> topic_need("%RETRY%g", Permission.PUB)
    Need(kind='group', name='g', permission=<Permission.SUB: 8>)
    """
    for prefix in (RETRY_PREFIX, _DEAD_PREFIX):
        if name.startswith(prefix):
            return Need("group", name.removeprefix(prefix), SUB)
    if name in _SYSTEM or name.startswith(_SYSTEM_PREFIXES):
        # They hold messages of every topic.
        return ADMIN
    return Need("topic", name, permission)


def group_need(name: str) -> Need:
    """Return what is needed of a consumer group."""
    return Need("group", name, SUB)


def _free(_: Request) -> Iterator[Need]:
    yield from ()


def _admin(_: Request) -> Iterator[Need]:
    yield ADMIN


def _fields(
    *, topic: str = "", permission: Permission = EITHER, group: str = "", optional: bool = False
) -> Finder:
    """Need something of what fields of the header name."""

    def find(request: Request) -> Iterator[Need]:
        read = request.command.ext.get if optional else request.text
        if topic and (name := read(topic)):
            yield topic_need(name, permission)
        if group and (name := read(group)):
            yield group_need(name)

    return find


def _heart_beat(request: Request) -> Iterator[Need]:
    for consumer in request.large_body(Heartbeat).consumer_data_set:
        yield group_need(consumer.group_name)
        for told in consumer.subscription_data_set:
            yield topic_need(told.topic, SUB)


def _lock(request: Request) -> Iterator[Need]:
    asked = request.large_body(LockRequest)
    yield group_need(asked.consumer_group)
    for topic in {queue.topic for queue in asked.mq_set}:
        yield topic_need(topic, SUB)


class _Subscription(JsonBody):
    topic: str = ""


class _ClientConfig(JsonBody):
    group: str = ""
    subscription_data: _Subscription = msgspec.field(default_factory=_Subscription)


def _client_config(request: Request) -> Iterator[Need]:
    asked = request.body(_ClientConfig)
    yield group_need(asked.group)
    yield topic_need(asked.subscription_data.topic, SUB)


class _Assignment(JsonBody):
    topic: str = ""
    consumer_group: str = ""


def _assignment(request: Request) -> Iterator[Need]:
    asked = request.body(_Assignment)
    yield group_need(asked.consumer_group)
    yield topic_need(asked.topic, SUB)


def _open(request: Request) -> Iterator[Need]:
    yield topic_need(request.strict_body(transactions.OpenRequest).commit_topic, PUB)


def _stage(request: Request) -> Iterator[Need]:
    # Whose job it is counts, also where nothing is staged for any topic.
    yield topic_need(request.text("job") + transactions.COMMIT_TOPIC_SUFFIX, PUB)
    body = memoryview(request.command.payload)
    for topic in {section.topic for section in transactions.decode_sections(body)}:
        yield topic_need(topic, PUB)


def _commit(request: Request) -> Iterator[Need]:
    asked = request.strict_body(transactions.CommitRequest)
    yield topic_need(asked.commit_topic, PUB)
    yield group_need(asked.group)
    sections = chain.from_iterable(
        transactions.decode_sections(part.sections) for part in asked.parts
    )
    for topic in {section.topic for section in sections}:
        yield topic_need(topic, PUB)


def _plan(request: Request) -> Iterator[Need]:
    asked = request.strict_body(transactions.PlanRequest)
    yield topic_need(asked.commit_topic, PUB)
    for topic in asked.topics:
        yield topic_need(topic, SUB)


_reading = _fields(topic="topic", permission=SUB, group="consumerGroup")
_topic = _fields(topic="topic")
_group = _fields(group="consumerGroup")
_sending = _fields(topic="b", permission=PUB)

NEEDS: dict[int, Finder] = {
    # Messages.
    Code.SEND_MESSAGE: _fields(topic="topic", permission=PUB),
    Code.SEND_MESSAGE_V2: _sending,
    Code.SEND_BATCH_MESSAGE: _sending,
    # The handlers of these two see that the message is of the topic that was named.
    Code.END_TRANSACTION: _fields(topic="topic", permission=PUB),
    Code.CONSUMER_SEND_MSG_BACK: _fields(topic="originTopic", permission=SUB, group="group"),
    Code.PULL_MESSAGE: _reading,
    Code.LITE_PULL_MESSAGE: _reading,
    Code.QUERY_MESSAGE: _fields(topic="topic", permission=SUB),
    # By its position: whose message that is, nobody knows before.
    Code.VIEW_MESSAGE_BY_ID: _admin,
    # Offsets.
    Code.QUERY_CONSUMER_OFFSET: _reading,
    Code.UPDATE_CONSUMER_OFFSET: _reading,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _topic,
    Code.GET_MAX_OFFSET: _topic,
    Code.GET_MIN_OFFSET: _topic,
    Code.GET_EARLIEST_MSG_STORETIME: _topic,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _fields(topic="topic", permission=SUB, group="group"),
    # Clients and groups.
    Code.HEART_BEAT: _heart_beat,
    Code.UNREGISTER_CLIENT: _fields(group="consumerGroup", optional=True),
    Code.GET_CONSUMER_LIST_BY_GROUP: _group,
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    Code.CHECK_CLIENT_CONFIG: _client_config,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.GET_CONSUMER_CONNECTION_LIST: _group,
    Code.GET_CONSUMER_RUNNING_INFO: _group,
    # By a position, as above.
    Code.CONSUME_MESSAGE_DIRECTLY: _admin,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields(topic="topic", group="group"),
    Code.GET_CONSUME_STATS: _group,
    Code.QUERY_TOPICS_BY_CONSUMER: _fields(group="group"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields(topic="topic", group="group"),
    Code.QUERY_CONSUME_TIME_SPAN: _fields(topic="topic", group="group"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(group="group"),
    Code.GET_TOPIC_CONFIG: _topic,
    Code.GET_TOPIC_STATS_INFO: _topic,
    # What every client must know to find its way.
    Code.GET_ROUTEINFO_BY_TOPIC: _free,
    Code.GET_BROKER_CLUSTER_INFO: _free,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _free,
    Code.GET_TOPICS_BY_CLUSTER: _free,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _free,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _free,
    Code.GET_KV_CONFIG: _free,
    Code.GET_KVLIST_BY_NAMESPACE: _free,
    Code.GET_BROKER_RUNTIME_INFO: _free,
    Code.GET_BROKER_MEMBER_GROUP: _free,
    Code.HEADRACE_CAPABILITIES: _free,
    Code.LIST_JOBS: _free,
    # Jobs: a job writes its commit topic, its state and its results, and reads its sources.
    Code.OPEN_JOB: _open,
    Code.STAGE: _stage,
    Code.COMMIT_BATCH: _commit,
    Code.PLAN_BATCH: _plan,
    # Everything that changes or shows the cluster as a whole.
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            Code.UPDATE_AND_CREATE_STATIC_TOPIC,
            Code.DELETE_TOPIC_IN_BROKER,
            Code.DELETE_TOPIC_IN_NAMESRV,
            Code.REGISTER_TOPIC_IN_NAMESRV,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.DELETE_SUBSCRIPTIONGROUP,
            Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_ALL_PRODUCER_INFO,
            Code.UPDATE_BROKER_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.UPDATE_NAMESRV_CONFIG,
            Code.GET_NAMESRV_CONFIG,
            Code.PUT_KV_CONFIG,
            Code.DELETE_KV_CONFIG,
            Code.REGISTER_BROKER,
            Code.UNREGISTER_BROKER,
            Code.BROKER_HEARTBEAT,
            Code.QUERY_DATA_VERSION,
            Code.WIPE_WRITE_PERM_OF_BROKER,
            Code.ADD_WRITE_PERM_OF_BROKER,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.CLEAN_UNUSED_TOPIC,
            Code.DELETE_EXPIRED_COMMITLOG,
            Code.VIEW_BROKER_STATS_DATA,
            Code.GET_BROKER_CONSUME_STATS,
            Code.GET_ALL_DELAY_OFFSET,
            Code.CLONE_GROUP_OFFSET,
            Code.SET_MESSAGE_REQUEST_MODE,
            Code.RESET_CONSUMER_CLIENT_OFFSET,
            Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        ),
        _admin,
    ),
}
"""What each request needs, by its code; a code that is not here needs an admin."""


NAMED_IN_BODY = frozenset(
    code
    for code, find in NEEDS.items()
    if find in {_heart_beat, _lock, _client_config, _assignment, _open, _stage, _commit, _plan}
)
"""Requests whose body says what they need; the order of no two of them on a connection counts."""


def needs_of(request: Request) -> Iterator[Need]:
    """List what a request needs to be allowed.

    Raises
    ------
    InvalidParameterError, ProtocolError
        When it lacks a field, or its body cannot be read.
    """
    return NEEDS.get(request.command.code, _admin)(request)


logger = logging.getLogger(__name__)


class Guard:
    """Passes on the requests that the rules allow and refuses the others.

    The file with the rules is read again when it changes; a file that is wrong changes nothing.

    Parameters
    ----------
    file
        The rules.

    Raises
    ------
    SettingsError
        When the rules cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = _stamp(file)
        self.rules = load_rules(file)

    def refresh(self) -> bool:
        """Read the rules again if the file changed; tells whether there are new ones."""
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.rules = load_rules(self._file)
        except SettingsError as error:
            logger.error("the access rules stay as they were: %s", error)
            return False
        logger.warning("access rules read again from %s", self._file)
        return True


@dataclass(frozen=True, slots=True)
class Door:
    """The guard in front of what handles requests."""

    guard: Guard
    dispatch: Callable[[Request], None]
    refusals: Refusals
    work: BackgroundWork

    def __call__(self, request: Request) -> None:
        """Pass a request on, or answer that it is refused."""
        why, account = identified(self.guard.rules, request)
        if why is not None:
            self._refuse(request, request.reply(ResponseCode.NO_PERMISSION, why))
        elif account is None:
            self.dispatch(request)
        elif request.is_large and request.command.code in NAMED_IN_BODY:
            request.peer.hold(len(request.command.payload))
            request = replace(request, account=account.access_key, read={})
            self.work.start_task(self._later(request, account))
        else:
            try:
                why = lacks(account, request)
            except HeadraceError as error:
                self._refuse(request, failure(request, error))
            else:
                self._pass_on(replace(request, account=account.access_key), why)

    async def _later(self, request: Request, account: Account) -> None:
        # What it needs is in its body: nobody waits while that is read.
        try:
            why = await self.work.in_thread(lacks, account, request)
        except HeadraceError as error:
            self._refuse(request, failure(request, error))
        else:
            self._pass_on(request, why)
        finally:
            request.peer.release(len(request.command.payload))

    def _pass_on(self, request: Request, why: str | None) -> None:
        if why is None:
            self.dispatch(request)
        else:
            self._refuse(request, request.reply(ResponseCode.NO_PERMISSION, why))

    def _refuse(self, request: Request, answer: Command) -> None:
        self.refusals.note(request, answer)
        request.answer(answer)


def identified(rules: AccessRules, request: Request) -> tuple[str | None, Account | None]:
    """Return why nobody knows who asks, or which account it is, where that one may not do all."""
    address = request.peer.address[0]
    if rules.trusts(address):
        return None, None
    key = request.command.ext.get(ACCESS_KEY)
    if not key:
        why = "No accessKey is configured: this broker has access control, and nobody signed"
        return why, None
    account = rules.accounts.get(key)
    if account is None:
        return f"No acl config for {key[:80]}: there is no such access key", None
    trusted = account.is_trusted_at(address)
    if not trusted and not is_signed_with(request.command, account.secret_key):
        return f"check signature failed. The secret of access key {key} is another one", None
    return None, None if account.is_admin else account


def lacks(account: Account, request: Request) -> str | None:
    """Return what an account lacks for a request; None: nothing.

    Raises
    ------
    InvalidParameterError, ProtocolError
        When it cannot be read.
    """
    if account.is_trusted_at(request.peer.address[0]):
        return None
    lacking = (need for need in needs_of(request) if not _has(account, need))
    return next((_missing(account, need) for need in lacking), None)


def _has(account: Account, need: Need) -> bool:
    if need.kind == "admin":
        return False
    allowed = account.of_topic if need.kind == "topic" else account.of_group
    return bool(allowed(need.name) & need.permission)


def _missing(account: Account, need: Need) -> str:
    key = account.access_key
    if need.kind == "admin":
        return f"no matched policies: the request needs an admin, and access key {key} is none"
    words = " or ".join(flag.name or "" for flag in need.permission)
    return f"no matched policies: access key {key} lacks {words} on {need.kind} {need.name[:300]!r}"


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
