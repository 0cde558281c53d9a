"""A server whose answers a test writes as a Python function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from headrace.protocol.frames import Command, FrameBuffer, encode

Answer = Callable[[Command], Command | None]


class ScriptedServer:
    """Answers each request with ``answer(request)``; None: not at all."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Command] = []
        self.connections: list[asyncio.Transport] = []
        self.address = ""
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Session(self), "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def drop_connections(self) -> None:
        for transport in self.connections:
            transport.abort()
        self.connections.clear()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await self._server.wait_closed()
        await asyncio.sleep(0)


class _Session(asyncio.Protocol):
    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._frames = FrameBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.append(transport)

    def data_received(self, data: bytes) -> None:
        for command in self._frames.feed(data):
            self._server.requests.append(command)
            reply = self._server.answer(command)
            if reply is not None and not self._transport.is_closing():
                self._transport.writelines(encode(reply))


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncGenerator[ScriptedServer, None]:
    server = ScriptedServer(answer)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
