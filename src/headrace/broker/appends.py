"""Appends of one round of the loop, handed to the store together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.network.mailbox import Mailbox
    from headrace.store import AppendResult, MessageStore, QueueAppend


@dataclass(slots=True)
class AppendOutcome:
    """How an append ended: a result for each queue, or what went wrong."""

    results: list[AppendResult]
    error: BaseException | None = None


OnAppended = Callable[[AppendOutcome], None]
"""Told, on the loop, how an append ended."""


class Appends:
    """Gathers what one round of the loop appends, so that it costs one write and one wake-up.

    Parameters
    ----------
    store
        Where messages go.
    mailbox
        The way back to the loop.
    loop
        The loop whose thread makes all calls.
    """

    def __init__(
        self, store: MessageStore, mailbox: Mailbox, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._loop = loop
        self._gathered: list[tuple[list[QueueAppend], OnAppended]] = []

    def add(self, appends: list[QueueAppend], done: OnAppended) -> None:
        """Append with whatever else comes in this round, in the order of the calls.

        Raises
        ------
        MessageTooLargeError, InvalidParameterError
            As :meth:`MessageStore.append`; the others of the round go on.
        """
        for append in appends:
            self._store.check(append)
        self._gathered.append((appends, done))
        if len(self._gathered) == 1:
            self._loop.call_soon(self.submit)

    def submit(self) -> None:
        """Hand over what was gathered."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        appends = [append for each, _ in gathered for append in each]
        try:
            future = self._store.append(appends, checked=True)
        except HeadraceError as error:
            _tell(gathered, [], error)
            return
        if future.done():
            _finish(gathered, future)
        else:
            future.add_done_callback(
                lambda ended: self._mailbox.post(partial(_finish, gathered, ended))
            )


def _finish(
    gathered: list[tuple[list[QueueAppend], OnAppended]], ended: Future[list[AppendResult]]
) -> None:
    error = ended.exception()
    _tell(gathered, [] if error else ended.result(), error)


def _tell(
    gathered: list[tuple[list[QueueAppend], OnAppended]],
    results: list[AppendResult],
    error: BaseException | None,
) -> None:
    first = 0
    for appends, done in gathered:
        last = first + len(appends)
        done(AppendOutcome(results[first:last], error))
        first = last
