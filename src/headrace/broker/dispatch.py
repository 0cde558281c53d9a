"""From a request to its handler, and from what the handler gives to an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from headrace.broker.core import Core
from headrace.broker.failures import failure
from headrace.broker.requests import Outcome, Request
from headrace.protocol.codes import ResponseCode
from headrace.protocol.frames import Command

__all__ = ["Dispatcher", "Handler"]

Handler = Callable[[Core, Request], Outcome]


class Dispatcher:
    """Calls the handler of each request.

    Parameters
    ----------
    core
        What handlers work on.
    handlers
        Handlers by request code.
    """

    def __init__(self, core: Core, handlers: Mapping[int, Handler]) -> None:
        self._core = core
        self._handlers = handlers
        #: Requests taken so far.
        self.count = 0
        #: Set when the broker stops: clients go elsewhere or try again.
        self.closing = False

    def __call__(self, request: Request) -> None:
        """Handle a request; whatever goes wrong becomes its answer."""
        self.count += 1
        handler = self._handlers.get(request.command.code)
        if handler is None:
            # The leading blank is RocketMQ's, and tools look for the text.
            remark = f" request type {request.command.code} not supported"
            request.answer(request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        if self.closing:
            remark = "the broker is stopping"
            request.answer(request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
            return
        try:
            gate = self._core.replication.gate
            outcome = (gate and gate(request)) or handler(self._core, request)
        except Exception as error:  # noqa: BLE001  (the client is told, whatever it is)
            outcome = self._refused(request, error)
        if isinstance(outcome, Command):
            request.answer(outcome)
        elif outcome is not None:
            # Counted from now on: the task itself begins later.
            size = len(request.command.payload)
            request.peer.hold(size)
            self._core.start_task(self._answer_later(request, outcome, size))

    async def _answer_later(self, request: Request, outcome: Awaitable[Command], size: int) -> None:
        try:
            answer = await outcome
        except Exception as error:  # noqa: BLE001  (the client is told, whatever it is)
            answer = self._refused(request, error)
        finally:
            request.peer.release(size)
        request.answer(answer)

    def _refused(self, request: Request, error: Exception) -> Command:
        answer = failure(request, error)
        self._core.refusals.note(request, answer)
        return answer
