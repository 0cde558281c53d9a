"""A running broker as a target: whole requests with changed codes, fields and bodies."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from headrace.broker import BrokerSettings, EmbeddedBroker, Limits
from headrace.broker.handlers import HANDLERS
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command, encode
from tests.broker.wire import Wire
from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.running import quick_settings, running
from tests.fuzz import corpus
from tests.fuzz.targets import Target

__all__ = ["LiveBroker", "LiveConnect"]

_PATIENCE = 10.0
_INSIDE = "failed inside the broker"
_LIMITS = Limits(max_topics=300, max_groups=300, max_polls=200, max_connections=50)
_VALUES = ("-1", "0", "9223372036854775807", "", "x", "true", "1e3", "%RETRY%g", "lines", "\x01")


class _Failures(logging.Handler):
    """Keeps what the broker logs with a traceback: nothing that comes from outside may do that."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        if record.exc_info and record.exc_info[0] is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class LiveBroker:
    """A broker that gets broken requests and must neither die nor answer with a bug.

    Parameters
    ----------
    folder
        Where it keeps its files.
    """

    def __init__(self, folder: Path) -> None:
        settings = BrokerSettings(flush="async", limits=_LIMITS, segment_size=64 << 20)
        self._broker = EmbeddedBroker(folder / "data", settings=settings)
        self._failures = _Failures()

    def __enter__(self) -> Self:
        self._broker.start()
        logging.getLogger("headrace").addHandler(self._failures)
        with Wire(self._broker.address) as wire:
            wire.create("lines", queues=2)
            wire.put("lines", b"first")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger("headrace").removeHandler(self._failures)
        self._broker.stop()

    def target(self) -> Target:
        """Describe it like the decoders."""
        return Target("broker", _inputs, self._attack, memory=256 << 20, shrinks=False)

    def _attack(self, data: bytes) -> None:
        """Send bytes, then ask on a connection of its own whether all is well."""
        choice = random.Random(data)
        with Wire(self._broker.address) as attacker:
            with contextlib.suppress(OSError):
                changed = choice.random() < 0.7
                attacker.send_raw(_changed(data, choice) if changed else data)
                attacker.read_to_the_end(_PATIENCE)
            for answer in attacker.answered():
                assert _INSIDE not in (answer.remark or ""), answer.remark
        with Wire(self._broker.address) as wire:
            wire.limit(_PATIENCE)
            assert wire.ask(RequestCode.HEADRACE_CAPABILITIES).code == 0
        assert not self._failures.found, self._failures.found


def _inputs() -> list[bytes]:
    return corpus.frames()


#: What other requests than those of the corpus read, whichever of it each reads.
_FIELDS = {
    **dict.fromkeys(("topic", "topicName", "originTopic", "key", "namespace"), "lines"),
    **dict.fromkeys(("group", "consumerGroup", "producerGroup", "groupName"), "readers"),
    **dict.fromkeys(("queueId", "offset", "timestamp", "commitOffset", "delayLevel"), "0"),
    **dict.fromkeys(("brokerName", "clusterName", "brokerAddr", "clientId"), "broker-a"),
    "value": "v",
    "brokerId": "0",
    "haServerAddr": "127.0.0.1:1",
    "topicList": "lines;other",
}
#: Headrace's own requests between brokers change what a broker is.
_BETWEEN_BROKERS = 28_010


@cache
def _requests() -> list[Command]:
    real = list(corpus.requests())
    send = real[0].ext
    for more in (
        "DELAY\x013\x02",
        "TIMER_DELAY_MS\x0150\x02",
        "TRAN_MSG\x01true\x02PGROUP\x01p\x02",
    ):
        flag = "4" if "TRAN" in more else "0"
        real.append(Command(310, send | {"i": more + send["i"], "f": flag}, b"later"))
    known = {command.code for command in real}
    bodies = corpus.bodies()
    for number, code in enumerate(sorted(HANDLERS)):
        if code not in known and code < _BETWEEN_BROKERS:
            real.append(Command(code, dict(_FIELDS), bodies[number % len(bodies)]))
            real.append(Command(code, dict(_FIELDS)))
    return real


def _changed(data: bytes, choice: random.Random) -> bytes:
    """Make a real request with some fields changed, and some of the data in its body."""
    real = choice.choice(_requests())
    ext = dict(real.ext)
    for name in choice.sample(sorted(ext), min(len(ext), choice.randrange(3))):
        ext[name] = choice.choice(_VALUES)
    body = bytes(real.payload)
    if body and choice.random() < 0.7:
        at = choice.randrange(len(body))
        body = body[:at] + data[: choice.randrange(1, 20)] + body[at + choice.randrange(20) :]
    return b"".join(encode(Command(real.code, ext, body, opaque=choice.randrange(1000))))


class LiveConnect:
    """A Connect worker whose REST gets broken requests, and must answer whole ones all the while."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()
        self._failures = _Failures()

    def __enter__(self) -> Self:
        settings = quick_settings(request_time="2 s")
        self._worker = self._opened.enter_context(
            running(FakeLauncher, positions_of_fakes, settings=settings)
        )
        logging.getLogger("headrace").addHandler(self._failures)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("headrace").removeHandler(self._failures)
        self._opened.close()

    def target(self) -> Target:
        """Describe it like the decoders."""
        return Target("rest", corpus.rest_requests, self._attack, memory=256 << 20, shrinks=False)

    def _attack(self, data: bytes) -> None:
        place = urlsplit(self._worker.url)
        address = (place.hostname, place.port)
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(address, timeout=_PATIENCE) as attacker,
        ):
            attacker.sendall(data)
            attacker.shutdown(socket.SHUT_WR)
            answer = b""
            while more := attacker.recv(1 << 16):
                answer += more
            assert b" 500 " not in answer.partition(b"\r\n")[0], answer[:500]
        assert self._worker.http.get("/health").status_code == 200
        assert not self._failures.found, self._failures.found
