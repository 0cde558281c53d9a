"""RocketMQ's Java clients and tools, from Python: options in, plain data out."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.java.process import JavaProcess

__all__ = [
    "Java",
    "JavaClient",
    "JavaConsumer",
    "JavaGot",
    "JavaMessage",
    "JavaProducer",
    "JavaPullConsumer",
    "JavaQueue",
    "JavaSent",
    "Security",
]

JavaQueue = tuple[str, str, int]
"""Topic, broker name, queue id."""

Start = Literal["FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"]
Verdict = Literal["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]


@dataclass(frozen=True, slots=True)
class Security:
    """How a client proves who it is, and whether it encrypts."""

    #: Access key and secret.
    credentials: tuple[str, str] | None = None
    tls: bool = False


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """A message to send."""

    body: bytes
    tags: str | None = None
    keys: str | None = None
    delay_level: int | None = None
    delay_seconds: int | None = None
    delay_ms: int | None = None
    deliver_ms: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def told(self, topic: str) -> dict[str, object]:
        """Write it as the driver reads it."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return fields | {"topic": topic, "body": base64.b64encode(self.body).decode()}


@dataclass(frozen=True, slots=True)
class JavaGot:
    """A message that a consumer got."""

    topic: str
    queue: int
    offset: int
    body: bytes
    properties: dict[str, str]
    reconsume_times: int
    msg_id: str
    sys_flag: int
    position: int
    #: When it came, ms since 1970; 0 where that is not noted.
    arrived: int = 0

    @classmethod
    def of(cls, told: dict[str, Any]) -> JavaGot:
        """Read it as the driver writes it."""
        fields = {name: told[name] for name in cls.__slots__ if name in told}
        return cls(**fields | {"body": base64.b64decode(told["body"])})


@dataclass(frozen=True, slots=True)
class JavaSent:
    """What a producer learned of a message, or of a batch, that it sent."""

    status: str
    msg_id: str
    queue: int
    offset: int
    #: Of a half message the client does not tell it.
    offset_id: str = ""
    transaction_id: str | None = None


class JavaClient:
    """A client that runs in the Java process; leaving its block ends it."""

    def __init__(self, process: JavaProcess, handle: int) -> None:
        self._process = process
        self._handle: int | None = handle

    def ask(self, operation: str, /, *, wait: float = 60, **fields: object) -> Any:
        """Do something that the driver knows by name."""
        return self._process.ask(operation, wait=wait, handle=self._handle, **fields)

    def stop(self) -> None:
        """End the client as its users would; again: nothing."""
        self._end("stop")

    def kill(self) -> None:
        """Cut its connections without a farewell, as a crash would."""
        self._end("kill")

    def _end(self, operation: str) -> None:
        if self._handle is not None:
            self.ask(operation)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def client_id(self) -> str:
        """The id under which the broker knows a consumer."""
        return str(self.ask("client_id"))

    def queues(self, topic: str) -> list[JavaQueue]:
        """List the queues of a topic as the client sees them."""
        return _queues(self.ask("queues", topic=topic))


class JavaProducer(JavaClient):
    """A producer, of transactions too when it has a script for them."""

    def send(
        self,
        topic: str,
        *messages: JavaMessage | bytes,
        how: Literal["sync", "async", "oneway", "batch", "hash", "transaction"] = "sync",
        queue: JavaQueue | None = None,
    ) -> list[JavaSent]:
        """Send; ``hash`` picks the queue by the keys, ``oneway`` tells nothing."""
        return self.start_send(topic, *messages, how=how, queue=queue)()

    def start_send(
        self,
        topic: str,
        *messages: JavaMessage | bytes,
        how: str = "sync",
        queue: JavaQueue | None = None,
    ) -> Callable[[], list[JavaSent]]:
        """Begin to send; the call that is given waits for the results."""
        told = [
            (JavaMessage(each) if isinstance(each, bytes) else each).told(topic)
            for each in messages
        ]
        future = self._process.start(
            "send", handle=self._handle, how=how, messages=told, queue=queue
        )
        return lambda: [JavaSent(**each) for each in future.result(60)]

    def checks(self) -> list[JavaGot]:
        """List the half messages that the broker asked about so far."""
        return _messages(self.ask("checks"))

    def view(self, topic: str, msg_id: str) -> JavaGot:
        """Look a message up by either of its ids."""
        return JavaGot.of(self.ask("view", topic=topic, msg_id=msg_id))

    def create_topic(self, key: str, topic: str, queues: int) -> None:
        """Create a topic the way old programs do: at the brokers of another one."""
        self.ask("create_topic", key=key, topic=topic, queues=queues)


class JavaConsumer(JavaClient):
    """A push consumer or a lite pull consumer."""

    def take(self, count: int, timeout: float = 20) -> list[JavaGot]:
        """Take the next messages: so many, or fewer when time is up."""
        found = self.ask("take", count=count, timeout_ms=int(timeout * 1000), wait=timeout + 30)
        return _messages(found)

    def start_take(self, count: int, timeout: float = 20) -> Callable[[], list[JavaGot]]:
        """Begin to take messages; the call that is given waits for them."""
        future = self._process.start(
            "take", handle=self._handle, count=count, timeout_ms=int(timeout * 1000)
        )
        return lambda: _messages(future.result(timeout + 30))

    def bodies(self, count: int, timeout: float = 20) -> list[bytes]:
        """Take the next messages and give their bodies."""
        return [message.body for message in self.take(count, timeout)]

    def taken(self) -> list[JavaGot]:
        """List all that a push consumer has got so far."""
        return _messages(self.ask("taken"))

    def assignment(self, topic: str = "") -> list[JavaQueue]:
        """List the queues that it reads now."""
        return _queues(self.ask("assignment", topic=topic))

    def assign(self, queues: Sequence[JavaQueue]) -> None:
        """Lite pull: read these queues."""
        self.ask("assign", queues=list(queues))

    def seek(self, queue: JavaQueue, offset: int) -> None:
        """Lite pull: go on from an offset."""
        self.ask("seek", queue=queue, offset=offset)

    def offset_for(self, queue: JavaQueue, timestamp: int) -> int:
        """Find the first offset at or after a time."""
        return int(self.ask("offset_for", queue=queue, timestamp=timestamp))

    def commit(self) -> None:
        """Lite pull: commit what was taken."""
        self.ask("commit")

    def committed(self, queue: JavaQueue) -> int:
        """Tell what is committed."""
        return int(self.ask("committed", queue=queue))


class JavaPullConsumer(JavaClient):
    """The old pull consumer: offsets are its user's affair."""

    def pull(
        self, queue: JavaQueue, offset: int, *, count: int = 32, tags: str = "*"
    ) -> tuple[str, int, list[JavaGot]]:
        """Pull once: the status, where to go on, and messages."""
        found = self.ask("pull", queue=queue, offset=offset, count=count, tags=tags)
        return found["status"], found["next"], _messages(found["messages"])


def _messages(told: list[dict[str, Any]]) -> list[JavaGot]:
    return [JavaGot.of(each) for each in told]


def _queues(told: list[list[Any]]) -> list[JavaQueue]:
    return [(str(topic), str(broker), int(queue)) for topic, broker, queue in told]


class Java:
    """RocketMQ's Java side: starts clients and runs tools."""

    def __init__(self, process: JavaProcess, home: Path) -> None:
        self._process = process
        #: Folder of what clients keep: their logs, and offsets of broadcasting groups.
        self.home = home

    def mqadmin(self, namesrv: str, *arguments: str, security: Security | None = None) -> str:
        """Run RocketMQ's own administration tool and return what it prints."""
        return self.start_mqadmin(namesrv, *arguments, security=security)()

    def start_mqadmin(
        self, namesrv: str, *arguments: str, security: Security | None = None
    ) -> Callable[[], str]:
        """Begin to run the tool; the call that is given waits for its output."""
        future: Future[Any] = self._process.start(
            "mqadmin", namesrv=namesrv, arguments=list(arguments), **_told(security)
        )
        return lambda: str(future.result(60))

    def until(self, text: str, namesrv: str, *arguments: str, timeout: float = 20) -> str:
        """Run the tool again and again until it prints a text, and return what it printed."""
        deadline = time.monotonic() + timeout
        while text not in (printed := self.mqadmin(namesrv, *arguments)):
            assert time.monotonic() < deadline, f"{arguments[0]} never printed {text!r}: {printed}"
            time.sleep(0.02)
        return printed

    def producer(
        self,
        namesrv: str,
        group: str = "java-producer",
        *,
        security: Security | None = None,
        **more: object,
    ) -> JavaProducer:
        """Start a producer; ``more`` are further settings that the driver knows."""
        return JavaProducer(
            self._process, self._start("producer", namesrv, group, _told(security) | more)
        )

    def transaction_producer(
        self,
        namesrv: str,
        group: str = "java-transactions",
        *,
        local: Verdict = "COMMIT_MESSAGE",
        checks: Sequence[Verdict] = ("COMMIT_MESSAGE",),
        security: Security | None = None,
    ) -> JavaProducer:
        """Start a producer of transactions: what it says at first, and when it is asked."""
        script = {"local": local, "checks": list(checks)}
        fields = _told(security) | {"transactions": script}
        return JavaProducer(self._process, self._start("producer", namesrv, group, fields))

    def push_consumer(
        self,
        namesrv: str,
        group: str,
        subscriptions: Mapping[str, str] | str,
        *,
        start: Start = "FIRST_OFFSET",
        orderly: bool = False,
        broadcast: bool = False,
        fail: Mapping[str, int] | None = None,
        security: Security | None = None,
        **more: object,
    ) -> JavaConsumer:
        """Start a push consumer.

        Parameters
        ----------
        subscriptions
            Tags by topic, or a topic of which all tags are wanted.
        fail
            How many deliveries of a body fail; -1: all.
        more
            ``level`` of the delay after a failure, ``max_reconsume_times``, ``suspend_ms``,
            ``pause_ms`` for each call, ``instance``, ``timestamp`` to start at.
        """
        fields = _told(security) | more
        fields |= {"start": start, "orderly": orderly, "broadcast": broadcast}
        fields |= {"subscriptions": _subscriptions(subscriptions), "fail": dict(fail or {})}
        return JavaConsumer(self._process, self._start("push", namesrv, group, fields))

    def lite_consumer(
        self,
        namesrv: str,
        group: str,
        subscriptions: Mapping[str, str] | str | None = None,
        *,
        start: Start = "FIRST_OFFSET",
        security: Security | None = None,
        **more: object,
    ) -> JavaConsumer:
        """Start a lite pull consumer; without subscriptions it assigns queues to itself."""
        fields = _told(security) | more
        fields |= {"start": start, "subscriptions": _subscriptions(subscriptions or {})}
        return JavaConsumer(self._process, self._start("lite", namesrv, group, fields))

    def pull_consumer(
        self, namesrv: str, group: str, *, security: Security | None = None
    ) -> JavaPullConsumer:
        """Start a pull consumer of the old kind."""
        return JavaPullConsumer(self._process, self._start("pull", namesrv, group, _told(security)))

    def _start(self, kind: str, namesrv: str, group: str, fields: Mapping[str, object]) -> int:
        given = {"namesrv": namesrv, "group": group, **fields}
        return int(self._process.start(f"new_{kind}", **given).result(60))


def _subscriptions(told: Mapping[str, str] | str) -> dict[str, str]:
    return {told: "*"} if isinstance(told, str) else dict(told)


def _told(security: Security | None) -> dict[str, object]:
    if security is None:
        return {}
    credentials = None if security.credentials is None else list(security.credentials)
    return {"credentials": credentials, "tls": security.tls}
