"""Brokers in processes of their own, killed at any time: nothing that was answered is lost."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from headrace.broker import BrokerProcess, spawn_broker
from headrace.protocol.codes import ResponseCode
from tests.broker.replication.test_replicas import bodies, caught_up, info, promote, segments, until
from tests.broker.wire import Wire

QUEUES = 2
OPTIONS = ["--segment-size", "20000", "--replica-timeout", "2 s"]


class Load:
    """Sends messages until it is told to stop, and notes which were answered."""

    def __init__(self, address: str, numbers: Iterator[int]) -> None:
        self._address = address
        self._numbers = numbers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: Bodies that the broker answered with success, or with "too few followers".
        self.answered: set[bytes] = set()
        self.short: set[bytes] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError), Wire(self._address) as wire:
            while not self._stop.is_set():
                sent = []
                for _ in range(20):
                    body = b"%d" % next(self._numbers)
                    sent.append((body, wire.start_put("lines", body, int(body) % QUEUES)))
                for body, number in sent:
                    code = wire.receive(number).code
                    if code == 0:
                        self.answered.add(body)
                    elif code in (ResponseCode.SLAVE_NOT_AVAILABLE, 12):
                        self.short.add(body)


def all_bodies(address: str) -> list[bytes]:
    return [body for queue in range(QUEUES) for body in bodies(address, "lines", queue)]


@pytest.mark.timeout(120)
def test_nothing_answered_is_lost_whoever_is_killed(tmp_path: Path) -> None:
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def start(name: str, *options: str, port: int = 0) -> BrokerProcess:
            process = spawn_broker(tmp_path / name, port, options=[*OPTIONS, *options])
            stack.callback(process.kill)
            return process

        first = start("first", "--min-replicas", "1")
        port = int(first.address.rpartition(":")[2])
        second = start("second", "--follow", first.address)
        other = int(second.address.rpartition(":")[2])
        with Wire(first.address) as wire:
            wire.create("lines", QUEUES)
        until(lambda: info(first.address).replicas, "the follower is there")

        # The follower dies, and comes back.
        with Load(first.address, numbers) as load:
            until(lambda: len(load.answered) > 200, "messages are answered")
            second.kill()
            until(lambda: load.short, "the primary says that nobody follows")
            second = start("second", "--follow", first.address, port=other)
            before = len(load.answered)
            until(lambda: len(load.answered) > before + 100, "messages are answered again")
        caught_up(first.address, second.address)
        assert segments(tmp_path / "second") == segments(tmp_path / "first")
        acknowledged = set(load.answered)

        # The primary dies, and its follower takes over.
        with Load(first.address, numbers) as load:
            until(lambda: len(load.answered) > 200, "messages are answered")
            first.kill()
        acknowledged |= load.answered
        assert not promote(second.address).fenced
        held = all_bodies(second.address)
        assert len(held) == len(set(held))
        assert len(acknowledged) > 500
        assert acknowledged - set(held) == set()

        # The old primary comes back, knows nothing of it, and is told.
        with Wire(second.address) as wire:
            assert wire.put("lines", b"new").code == 0
        first = start("first", port=port)
        until(lambda: info(first.address).role == "fenced", "the zombie is fenced")
        with Wire(first.address) as wire:
            assert wire.put("lines", b"zombie").code == ResponseCode.NO_PERMISSION
        first.kill()
        first = start("first", "--follow", second.address, port=port)
        until(lambda: b"new" in all_bodies(first.address), "it follows")
        caught_up(second.address, first.address)
        assert segments(tmp_path / "first") == segments(tmp_path / "second")
        assert sorted(all_bodies(first.address)) == sorted([*held, b"new"])
