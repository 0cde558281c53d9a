"""Whether a master of Spark is where settings say, found out before Spark looks for a minute."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from threading import Thread

import pytest

from headrace.spark.session import find_master

#: As a master answers, also one that asks for a secret: there is no such file.
_NO_SUCH_FILE = struct.pack(">qbi", 21, 8, 8) + b"headrace"


def test_a_master_is_known_by_its_answer() -> None:
    with _place(_NO_SUCH_FILE) as place:
        find_master(f"spark://127.0.0.1:1,{place}", timedelta(seconds=5))


def test_a_master_that_was_started_a_moment_ago_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    with pytest.raises(OSError, match="refused"):
        find_master(address, timedelta(seconds=5), timedelta(seconds=0.3))
    looks: list[str] = []

    def look() -> None:
        find_master(address, timedelta(seconds=5), timedelta(seconds=30))
        looks.append("found")

    looking = Thread(target=look)
    looking.start()
    looking.join(0.5)
    assert not looks
    with _place(_NO_SUCH_FILE, port):
        looking.join(30)
    assert looks == ["found"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "has sent nothing for 0.2 s"),
        (b"", "something other than a Spark master is there"),
        (b"\0\0", "something other than a Spark master is there"),
        (b"HTTP/1.1 400 Bad Request", "something other than a Spark master is there"),
    ],
    ids=["silent", "broker", "short", "web"],
)
def test_others_are_told_by_what_they_do(answer: bytes | None, said: str) -> None:
    with (
        _place(answer) as place,
        pytest.raises(OSError, match=rf"no master answers at {place} \(.*{said}"),
    ):
        find_master(f"spark://{place}", timedelta(seconds=0.2))


def test_no_other_kind_of_cluster_is_asked() -> None:
    find_master("yarn", timedelta(0))


@contextmanager
def _place(answer: bytes | None, port: int = 0) -> Iterator[str]:
    """Take connections, answer each and hang up; without an answer, hold them."""
    with socket.create_server(("127.0.0.1", port)) as server, ExitStack() as held:

        def serve() -> None:
            while True:
                try:
                    taken = held.enter_context(server.accept()[0])
                except OSError:
                    return
                with suppress(OSError):  # who asked may have heard enough, and be gone
                    taken.recv(1024)
                    if answer is not None:
                        taken.sendall(answer)
                        taken.shutdown(socket.SHUT_WR)

        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
