"""Code that takes too long is broken off where it is, and the place is named."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import serdes
from headrace.errors import BatchTimeoutError
from headrace.runtime.time_limit import time_limit
from headrace.runtime.user_code import Original, UserFunction
from headrace.streams import StreamBuilder
from headrace.topology.errors import DEAD_LETTER_PREFIX
from headrace.topology.operators.core import Operator

LIMIT = 0.2


def sleep(_: object = None) -> None:
    time.sleep(30)


def loop(_: int = 0) -> None:
    while time.monotonic() >= 0:
        pass


def wait_for_lock(_: int = 0) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def handle_everything(_: int = 0) -> None:
    for _ in range(2):
        try:
            time.sleep(30)
        except BaseException:
            continue


@pytest.fixture(autouse=True)
def no_alarm_is_left() -> Iterator[None]:
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.parametrize("hang", [sleep, loop, wait_for_lock])
def test_whatever_hangs_in_python_is_broken_off_at_its_line(hang: Callable[[], None]) -> None:
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError) as caught, time_limit(LIMIT, 4, 1):
        hang()
    assert time.monotonic() - began < 5
    assert (caught.value.batch, caught.value.task) == (4, 1)
    assert caught.value.line is not None
    assert f"in {hang.__name__}:" in caught.value.line


def test_code_that_catches_everything_is_broken_off_again_and_fails_at_its_end() -> None:
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError), time_limit(LIMIT, 4, 1):
        handle_everything()
    assert time.monotonic() - began < 10


class _Nowhere:
    def locate(self, mark: int) -> str:
        return f"mark {mark}"

    def divert(self, operator: Operator, mark: int, error: Exception, line: str | None) -> None:
        raise AssertionError("a record that hangs is no bad record")

    def divert_message(self, operator: Operator, original: Original, error: Exception) -> None:
        raise AssertionError("a message that hangs is no bad message")


def _operator(on_error: str) -> Operator:
    builder = StreamBuilder("job")
    builder.source("in", serdes.string).map_values(sleep, name="slow", on_error=on_error).sink(
        "out", serdes.json
    )
    return builder.build().operator("slow")


@pytest.mark.parametrize("on_error", ["fail", "skip", f"{DEAD_LETTER_PREFIX}dead"])
def test_operator_that_hangs_is_named_whatever_its_policy_for_records(on_error: str) -> None:
    operator = _operator(on_error)
    calls = UserFunction(operator, sleep, _Nowhere())
    named = "operator 'slow' did not end batch 9"
    with pytest.raises(BatchTimeoutError, match=named) as caught, time_limit(LIMIT, 9, 0):
        calls.call(17, 0)
    assert caught.value.component == "slow"
    assert "test_time_limit.py" in str(caught.value)


def test_what_ends_in_time_is_not_disturbed() -> None:
    with time_limit(LIMIT, 1, 0):
        pass
    time.sleep(1.5 * LIMIT)


def test_failure_of_its_own_comes_through() -> None:
    with pytest.raises(KeyError), time_limit(LIMIT, 1, 0):
        raise KeyError


def test_alarm_of_somebody_else_goes_on() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 2 * LIMIT)
        with pytest.raises(BatchTimeoutError), time_limit(LIMIT, 1, 0):
            sleep()
        assert not rung
        time.sleep(2 * LIMIT)
        assert rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_outside_of_the_main_thread_nothing_is_limited() -> None:
    ended = []

    def work() -> None:
        with time_limit(0.01, 1, 0):
            time.sleep(0.05)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended
