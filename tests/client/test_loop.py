from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from headrace.client import Client
from headrace.client.blocking import LoopThread, called_by, loop_thread

T = TypeVar("T")


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_coroutine_runs_on_the_background_thread() -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert loop_thread().call(where()) == "headrace-client"
    assert threading.current_thread().name != "headrace-client"


def test_many_threads_may_call_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda n: loop_thread().call(double(n)), range(200))
        assert list(results) == [2 * n for n in range(200)]


def test_an_error_reaches_the_caller() -> None:
    async def fail() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        loop_thread().call(fail())


def test_a_call_from_the_loop_itself_is_refused() -> None:
    async def inside() -> None:
        loop_thread().call(double(1))

    with pytest.raises(RuntimeError, match="own event loop"):
        loop_thread().call(inside())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    parent = loop_thread()
    assert parent.call(double(1)) == 2
    child = os.fork()
    if child == 0:
        try:
            own = loop_thread()
            ended = own is not parent and own.call(double(21)) == 42
            os._exit(0 if ended else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert loop_thread() is parent
    assert parent.call(double(2)) == 4


def test_a_call_costs_little() -> None:
    thread = loop_thread()
    best = min(_seconds_of(thread.call, 200) for _ in range(5))
    assert best / 200 < 0.000_5


def _seconds_of(call: object, times: int) -> float:
    assert callable(call)
    started = time.perf_counter()
    for number in range(times):
        call(double(number))
    return time.perf_counter() - started


def test_blocking_calls_can_be_run_by_something_else() -> None:
    class Counting:
        calls = 0

        def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
            self.calls += 1
            return asyncio.run(coroutine)

        def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
            coroutine.close()

        @property
        def loop(self) -> asyncio.AbstractEventLoop:
            raise NotImplementedError

    caller = Counting()
    with called_by(lambda: caller):
        client = Client("127.0.0.1:1")
        client.close()
        assert loop_thread() is caller
    assert caller.calls == 1
    assert isinstance(loop_thread(), LoopThread)
