"""Trying again: pauses that double, with jitter, until the patience is over."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.client.settings import ClientSettings

__all__ = ["retrying"]

T = TypeVar("T")

# Of its own: what a program has seeded stays as it is.
_jitter = random.Random()


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    settings: ClientSettings,
    *,
    patience: Callable[[], float],
    on_retry: Callable[[HeadraceError], None],
    final: tuple[type[HeadraceError], ...] = (),
) -> T:
    """Await ``attempt()`` until it succeeds, fails for good, or ``patience()`` seconds are over.

    Patience is asked for after each failure: an address that has answered once deserves more of it.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    pause = settings.retry_backoff.total_seconds()
    longest = settings.retry_backoff_limit.total_seconds()
    while True:
        try:
            return await attempt()
        except HeadraceError as error:
            left = started + patience() - loop.time()
            if not error.retriable or isinstance(error, final) or left <= 0:
                raise
            on_retry(error)
        await asyncio.sleep(min(pause * _jitter.uniform(0.5, 1.0), left))
        pause = min(2 * pause, longest)
