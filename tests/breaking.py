"""Errors that nobody has foreseen, in threads and tasks that run."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Collection

__all__ = ["BrokenError", "break_task", "break_thread", "soon"]

_SOON = 5.0


class BrokenError(Exception):
    """What nobody has foreseen."""


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SOON
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def is_named(actual: str, name: str) -> bool:
    return actual == name or actual.startswith(f"{name} ")


def break_thread(name: str, others: Collection[threading.Thread] = ()) -> None:
    """Raise an error in the one thread of a name that is none of the others, where it runs next."""
    (thread,) = [
        each for each in threading.enumerate() if is_named(each.name, name) and each not in others
    ]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(BrokenError)
    )


async def break_task(name: str) -> None:
    """Raise an error in a task of this loop, out of what it waits for."""
    for _ in range(2000):
        for task in asyncio.all_tasks():
            waiter = getattr(task, "_fut_waiter", None)
            if is_named(task.get_name(), name) and waiter is not None and not waiter.done():
                waiter.set_exception(BrokenError())
                await asyncio.wait({task})
                await asyncio.sleep(0)
                return
        await asyncio.sleep(0.001)
    raise AssertionError(f"no task {name}: {[each.get_name() for each in asyncio.all_tasks()]}")
