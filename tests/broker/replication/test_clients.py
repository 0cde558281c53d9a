"""What clients see of followers: statuses, routes, and another primary."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from headrace.broker import EmbeddedBroker
from headrace.client import Client, ClientSettings, Message, Producer
from headrace.protocol.codes import RequestCode, ResponseCode
from tests.broker.replication.test_replicas import (
    bodies,
    caught_up,
    info,
    promote,
    running,
    segments,
    until,
)
from tests.broker.wire import Wire
from tests.java.clients import Java


def test_our_producer_goes_on_with_the_promoted_broker(tmp_path: Path) -> None:
    first = running(tmp_path / "first")
    first.start()
    settings = ClientSettings(retry_timeout=timedelta(seconds=20))
    with (
        running(tmp_path / "second", follow=first.address) as second,
        Client(f"{first.address};{second.address}", settings) as client,
    ):
        with Wire(first.address) as wire:
            wire.create("lines", 1)
        producer = Producer(client)
        producer.send(Message(topic="lines", body=b"before"))
        caught_up(first.address, second.address)
        first.stop()
        promote(second.address)
        producer.send(Message(topic="lines", body=b"after"))
        assert bodies(second.address, "lines") == [b"before", b"after"]


def test_java_producer_is_told_that_too_few_followers_have_it(tmp_path: Path, java: Java) -> None:
    with running(tmp_path / "primary", min_replicas=1) as primary:
        with Wire(primary.address) as wire:
            wire.create("lines", 1)
        with java.producer(primary.address) as producer:
            assert producer.send("lines", b"alone")[0].status == "SLAVE_NOT_AVAILABLE"
            with running(tmp_path / "follower", follow=primary.address) as follower:
                until(lambda: info(primary.address).replicas, "the follower is there")
                caught_up(primary.address, follower.address)
                assert producer.send("lines", b"both")[0].status == "SEND_OK"
                listed = java.mqadmin(primary.address, "clusterList")
                assert primary.address in listed
                assert follower.address in listed
                with Wire(follower.address) as wire:
                    until(lambda: wire.pull("lines").code == 0, "the topic is known")
                # A consumer that knows only the follower finds both, and reads.
                with java.push_consumer(follower.address, "g", "lines") as consumer:
                    # Its threads hand messages over in any order.
                    assert sorted(consumer.bodies(2)) == [b"alone", b"both"]


class CuttingProxy:
    """A way to a broker that breaks after so many bytes of answers, again and again."""

    def __init__(self, target: str, after: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._after = after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        #: Connections that were cut.
        self.cuts = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            there = threading.Thread(target=_pump, args=(near, far, 1 << 40), daemon=True)
            there.start()
            self.cuts += _pump(far, near, self._after)
            for end in (near, far):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            there.join()

    def close(self) -> None:
        # A socket that is accepted on wakes only when it is shut down first.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _pump(source: socket.socket, target: socket.socket, most: int) -> bool:
    """Carry bytes until there are no more, or so many; whether these were too many."""
    with contextlib.suppress(OSError):
        while most > 0 and (data := source.recv(min(most, 65_536))):
            target.sendall(data)
            most -= len(data)
    return most <= 0


@contextlib.contextmanager
def cutting(broker: EmbeddedBroker, after: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(broker.address, after)
    try:
        yield proxy
    finally:
        proxy.close()


def test_connection_that_breaks_in_the_middle_costs_time_only(tmp_path: Path) -> None:
    with running(tmp_path / "primary") as primary, cutting(primary, 30_000) as proxy:
        with Wire(primary.address) as wire:
            wire.create("lines", 1)
            for number in range(100):
                wire.put("lines", b"%500d" % number)
        with running(tmp_path / "follower", follow=proxy.address) as follower:
            caught_up(primary.address, follower.address)
            assert proxy.cuts > 1
            assert segments(tmp_path / "follower") == segments(tmp_path / "primary")
            with Wire(follower.address) as wire:
                answer = wire.ask(RequestCode.SEND_MESSAGE_V2)
                assert answer.code == ResponseCode.NO_PERMISSION
