"""Requests of the broker to its clients, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import RequestTimeoutError
from headrace.protocol.frames import Buffer, Command

if TYPE_CHECKING:
    from headrace.broker.requests import Peer

__all__ = ["Questions"]

_ONEWAY = 2


@dataclass(frozen=True, slots=True)
class _Question:
    peer: int
    answer: asyncio.Future[Command]


class Questions:
    """What the broker asked its clients and was not answered yet.

    Both sides number their requests, each for itself: an answer counts only if it comes on the
    connection that was asked.
    """

    def __init__(self) -> None:
        self._opaque = 0
        self._open: dict[int, _Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def tell(self, peer: Peer, code: int, ext: Mapping[str, str], body: Buffer = b"") -> None:
        """Send a request that is not answered."""
        self._opaque += 1
        peer.send(Command(code, dict(ext), body, opaque=self._opaque, flag=_ONEWAY))

    async def ask(
        self, peer: Peer, code: int, ext: Mapping[str, str], body: Buffer, seconds: float
    ) -> Command:
        """Send a request and wait for its answer.

        Raises
        ------
        RequestTimeoutError
            When none came in time, or the client has gone.
        """
        self._opaque += 1
        number = self._opaque
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._open[number] = _Question(peer.number, answer)
        peer.send(Command(code, dict(ext), body, opaque=number))
        try:
            return await asyncio.wait_for(answer, seconds)
        except RequestTimeoutError:
            raise
        except TimeoutError:
            message = f"the client at {peer.address[0]}:{peer.address[1]} did not answer"
            raise RequestTimeoutError(f"{message} within {seconds:g} s") from None
        finally:
            del self._open[number]

    def answered(self, peer: int, command: Command) -> None:
        """Take what a client answered; what nobody asked is dropped."""
        question = self._open.get(command.opaque)
        if question is not None and question.peer == peer and not question.answer.done():
            question.answer.set_result(command)

    def gone(self, peer: int) -> None:
        """Give up on a client that is gone."""
        for question in self._open.values():
            if question.peer == peer and not question.answer.done():
                message = "the client closed its connection before it answered"
                question.answer.set_exception(RequestTimeoutError(message))
