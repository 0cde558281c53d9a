"""Calls of the user's listener: on the loop or on threads, in limited time, failures logged."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headrace.client.deliveries import ABANDONED, DEAD_LETTER, Outcome, Retry
from headrace.errors import ProtocolError
from headrace.protocol.messages import StoredMessage, readable
from headrace.user_lines import user_line

logger = logging.getLogger(__name__)

Listener = Callable[["StoredMessage"], "Outcome | Awaitable[Outcome]"]
"""A user's function of one message: plain (called on a thread) or ``async``."""


@dataclass(frozen=True, slots=True)
class Heard:
    """How a call of the listener ended."""

    outcome: Outcome = None
    failed: bool = False
    timed_out: bool = False
    #: A thread that still works although its time is over.
    lingering: asyncio.Future[Any] | None = None


class Listening:
    """Calls one listener.

    Caller: AsyncPushConsumer.
    """

    def __init__(
        self, listener: Listener, name: str, concurrency: int, timeout: timedelta, failed: Outcome
    ) -> None:
        self._listener = listener
        self._name = name
        self._timeout = timeout.total_seconds()
        self._failed = failed
        self._on_loop = _is_async(listener)
        self._threads: ThreadPoolExecutor | None = None
        if not self._on_loop:
            self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="headrace-listener")

    async def hear(self, message: StoredMessage) -> Heard:
        """Call the listener with a message, and log what it raises.

        A message whose body cannot be unpacked is a dead letter: no listener could read it, now or
        later.
        """
        try:
            readable(message.body, message.sys_flag)
        except ProtocolError as error:
            logger.error("%s: %s cannot be read: %s", self._name, _place(message), error)
            return Heard(DEAD_LETTER, failed=True)
        try:
            if self._threads is not None:
                return await self._on_thread(self._threads, message)
            return await self._in_time(self._listener(message), message)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failure(error, message)
        except Exception as error:  # noqa: BLE001  a listener raises what it likes
            return self._failure(error, message)

    def close(self) -> None:
        """Stop the threads; one that still works ends with its message."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _on_thread(self, threads: ThreadPoolExecutor, message: StoredMessage) -> Heard:
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(threads, self._listener, message)
        except RuntimeError:
            # The program ends and takes no more work: the next member reads the message.
            return Heard(ABANDONED)
        await asyncio.wait({future}, timeout=self._timeout)
        if not future.done():
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            return self._late(message, future)
        return await self._in_time(future.result(), message)

    async def _in_time(self, answer: object, message: StoredMessage) -> Heard:
        if inspect.isawaitable(answer):
            limit = asyncio.timeout(self._timeout)
            try:
                async with limit:
                    answer = await answer
            except TimeoutError:
                if limit.expired():
                    return self._late(message)
                raise
        if answer is None or isinstance(answer, Retry) or answer in (DEAD_LETTER, ABANDONED):
            return Heard(answer)
        raise TypeError(f"the listener returned {answer!r}: return None, Retry(...) or DEAD_LETTER")

    def _late(self, message: StoredMessage, lingering: asyncio.Future[Any] | None = None) -> Heard:
        logger.error(
            "%s: the listener took longer than %g s on %s: it comes again later",
            self._name, self._timeout, _place(message),
        )  # fmt: skip
        return Heard(self._failed, timed_out=True, lingering=lingering)

    def _failure(self, error: BaseException, message: StoredMessage) -> Heard:
        line = user_line(error, self._listener)
        logger.error(
            "%s: the listener failed on %s: %s: %s%s",
            self._name, _place(message), type(error).__name__, error,
            "" if line is None else f"\n  at {line}", exc_info=error,
        )  # fmt: skip
        return Heard(self._failed, failed=True)


def _is_async(listener: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004  an object may have an async __call__
    )


def _place(message: StoredMessage) -> str:
    return (
        f"topic {message.topic!r}, queue {message.queue_id}, offset {message.queue_offset}"
        f" (id {message.unique_key or message.offset_id}, try {message.reconsume_times + 1})"
    )
