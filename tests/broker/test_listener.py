"""The port, on a loop that the test itself drives."""

from __future__ import annotations

import asyncio
import socket

from headrace.broker.network.connection import Connection, ConnectionLedger, Hooks
from headrace.broker.network.listener import Admission, Listener
from headrace.broker.settings import Limits


def test_connection_that_comes_while_the_port_closes_is_closed() -> None:
    """A task that is cancelled before its first step leaves what it was to close."""
    taken: list[Connection] = []

    def make() -> Connection:
        hooks = Hooks(
            lambda _: None,
            taken.append,
            lambda _: None,
            lambda _, __: None,
            ConnectionLedger(Limits()),
        )
        return Connection(1, hooks)

    async def close_between_greeting_and_admission(client: socket.socket) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listener = Listener(listening, make, Admission(Limits()))
        listener.start()
        client.connect(listening.getsockname())
        client.send(b"\0")
        while not listener._tasks:
            await asyncio.sleep(0)
        listener.close()
        await asyncio.sleep(0)

    with socket.socket() as client:
        # A socket that nobody closes fails the test by its ResourceWarning.
        asyncio.run(close_between_greeting_and_admission(client))
    assert taken == []
