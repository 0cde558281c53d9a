"""Calling listeners, ordered workers, deliveries and queue locks, without a cluster."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headrace.client import (
    DEAD_LETTER,
    AsyncClient,
    Delivery,
    MessageQueue,
    Outcome,
    Retry,
    StoredMessage,
)
from headrace.client._consuming import MessageProcessing, OrderedWorkers, ProcessQueue
from headrace.client._listening import Heard, Listener, Listening
from headrace.client._push_engine import MemberLocks
from headrace.client.deliveries import ABANDONED
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult
from headrace.protocol.routes import BrokerData, ClusterInfo, dumps, loads
from tests.client.scripted_server import ScriptedServer, scripted

QUEUE = MessageQueue("lines", "b", 0)
MESSAGE = StoredMessage(topic="lines", queue_offset=7, body=b"x")
FAILED = Retry(level=3)
BRIEF = timedelta(milliseconds=20)


def hear(
    listener: Listener,
    timeout: timedelta = timedelta(seconds=5),
    message: StoredMessage = MESSAGE,
) -> Heard:
    async def scenario() -> Heard:
        listening = Listening(listener, "group 'g'", 2, timeout, FAILED)
        try:
            return await listening.hear(message)
        finally:
            listening.close()

    return asyncio.run(scenario())


class AsyncListener:
    async def __call__(self, message: StoredMessage) -> Outcome:
        return DEAD_LETTER


@pytest.mark.parametrize("outcome", [None, Retry(), Retry(timedelta(seconds=3)), DEAD_LETTER])
def test_what_a_listener_returns_is_what_happens(outcome: Outcome) -> None:
    async def on_loop(message: StoredMessage) -> Outcome:
        return outcome

    assert hear(on_loop) == Heard(outcome)
    assert hear(lambda message: outcome) == Heard(outcome)
    # A plain function may hand over a coroutine.
    assert hear(functools.partial(lambda call, message: call(message), on_loop)) == Heard(outcome)


@pytest.mark.parametrize("kind", [0x001, 0x101, 0x201, 0x301])
def test_a_message_that_cannot_be_unpacked_is_a_dead_letter_and_its_place_is_told(
    kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(message: StoredMessage) -> Outcome:
        raise AssertionError(message)

    damaged = replace(MESSAGE, sys_flag=kind)
    assert hear(listener, message=damaged) == Heard(DEAD_LETTER, failed=True)
    assert "topic 'lines', queue 0, offset 7" in caplog.text
    assert "cannot be unpacked" in caplog.text


def test_an_object_may_be_a_listener() -> None:
    assert hear(AsyncListener()) == Heard(DEAD_LETTER)


@pytest.mark.parametrize("wrong", [True, False, 0, "done"])
def test_an_answer_that_means_nothing_counts_as_a_failure(
    wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert hear(lambda message: wrong) == Heard(FAILED, failed=True)  # type: ignore[arg-type, return-value]
    assert f"the listener returned {wrong!r}: return None, Retry(...)" in caplog.text


def test_a_listener_that_cancels_itself_or_times_out_by_itself_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def cancelled(message: StoredMessage) -> None:
        raise asyncio.CancelledError

    async def impatient(message: StoredMessage) -> None:
        raise TimeoutError("a socket of its own")

    assert hear(cancelled) == Heard(FAILED, failed=True)
    assert hear(impatient) == Heard(FAILED, failed=True)
    assert "TimeoutError: a socket of its own" in caplog.text
    assert "topic 'lines', queue 0, offset 7" in caplog.text


def test_a_message_that_comes_while_the_program_ends_is_left_to_others() -> None:
    async def scenario() -> Heard:
        listening = Listening(lambda message: None, "g", 1, BRIEF, FAILED)
        listening.close()
        return await listening.hear(MESSAGE)

    assert asyncio.run(scenario()) == Heard(ABANDONED)


def test_a_late_listener_is_cancelled_and_a_late_thread_is_told_of() -> None:
    cancelled: list[bool] = []

    async def endless(message: StoredMessage) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    assert hear(endless, BRIEF) == Heard(FAILED, timed_out=True)
    assert cancelled == [True]
    go_on = threading.Event()

    def stuck(message: StoredMessage) -> None:
        go_on.wait(20)

    async def scenario() -> Heard:
        listening = Listening(stuck, "g", 1, BRIEF, FAILED)
        heard = await listening.hear(MESSAGE)
        assert heard.lingering is not None
        assert not heard.lingering.done()
        go_on.set()
        await asyncio.wait({heard.lingering})
        listening.close()
        return heard

    heard = asyncio.run(scenario())
    assert (heard.outcome, heard.timed_out, heard.failed) == (FAILED, True, False)


def ordered(
    outcomes: list[Outcome],
    act: Callable[[OrderedWorkers, ProcessQueue], Coroutine[Any, Any, None]],
    *,
    locked_out: bool = False,
) -> tuple[list[tuple[int, int]], list[tuple[int, Outcome]], int]:
    """Process offsets 0 and 1; return what was heard, what was put away, and what is committed."""
    heard: list[tuple[int, int]] = []
    away: list[tuple[int, Outcome]] = []

    async def listen(message: StoredMessage) -> Heard:
        heard.append((message.queue_offset, message.reconsume_times))
        await asyncio.sleep(0)
        return Heard(outcomes.pop(0) if outcomes else None)

    async def give_back(process: ProcessQueue, message: StoredMessage, outcome: Outcome) -> None:
        away.append((message.queue_offset, outcome))

    async def scenario() -> int:
        process = ProcessQueue(QUEUE, 0)
        workers = OrderedWorkers(
            MessageProcessing(listen, give_back, lambda: None),
            1,
            suspend=timedelta(milliseconds=1),
            max_times=2,
            may_process=lambda process: not locked_out,
            on_failure=lambda error: None,
        )
        workers.start(process)
        messages = [StoredMessage(topic="lines", queue_offset=n) for n in range(2)]
        process.add(messages, 2)
        workers.ready(process, 2)
        await act(workers, process)
        return process.committable

    committed = asyncio.run(scenario())
    return heard, away, committed


async def to_the_end(workers: OrderedWorkers, process: ProcessQueue) -> None:
    while process.committable < 2:
        await asyncio.sleep(0)
    await workers.finish(process)


def test_an_ordered_message_is_tried_in_place_until_it_is_a_dead_letter() -> None:
    heard, away, committed = ordered([Retry()] * 3, to_the_end)
    assert heard == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert away == [(0, DEAD_LETTER)]
    assert committed == 2
    heard, away, _ = ordered([DEAD_LETTER], to_the_end)
    assert (heard, away) == ([(0, 0), (1, 0)], [(0, DEAD_LETTER)])


def test_a_queue_that_is_given_up_ends_with_the_message_that_runs() -> None:
    async def give_up(workers: OrderedWorkers, process: ProcessQueue) -> None:
        await asyncio.sleep(0.01)
        await workers.finish(process)

    heard, away, committed = ordered([Retry(timedelta(minutes=5))], give_up)
    assert (heard, away, committed) == ([(0, 0)], [], 0)
    # Without its lock it does not even begin, and nothing is committed.
    assert ordered([], give_up, locked_out=True) == ([], [], 0)


def test_a_delivery_is_settled_once_from_any_thread(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[Outcome]:
        first, second, third = (Delivery(MESSAGE) for _ in range(3))
        await asyncio.to_thread(first.retry, timedelta(seconds=1))
        second.dead_letter()
        second.ack()
        async with third:
            raise ValueError("broken")
        return [await delivery.settled() for delivery in (first, second, third)]

    assert asyncio.run(scenario()) == [Retry(timedelta(seconds=1)), DEAD_LETTER, Retry()]
    assert "settled twice or too late" in caplog.text
    assert "ValueError: broken" in caplog.text
    assert "test_listening.py" in caplog.text


def test_a_lock_holds_while_the_broker_grants_it() -> None:
    refused: set[int] = {1}

    async def scenario() -> None:
        servers: list[ScriptedServer] = []

        def answer(command: Command) -> Command | None:
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                broker = BrokerData(broker_name="b", broker_addrs={"0": servers[0].address})
                return command.reply(body=dumps(ClusterInfo(broker_addr_table={"b": broker})))
            asked = loads(command.payload, LockRequest)
            granted = [queue for queue in asked.mq_set if queue.queue_id not in refused]
            return command.reply(body=dumps(LockResult(granted=granted)))

        async with scripted(answer) as server, AsyncClient(server.address) as client:
            servers.append(server)
            locks = MemberLocks(client, "g", "me")
            first, second = (MessageQueue("lines", "b", number) for number in range(2))
            assert await locks.acquire([first, second]) == {first}
            assert (locks.holds(first), locks.holds(second)) == (True, False)
            # The next renewal is refused: somebody else has it now.
            refused.add(0)
            assert await locks.acquire([first]) == set()
            assert not locks.holds(first)
            refused.clear()
            await locks.acquire([first, second])
            await locks.release([first])
            assert (locks.holds(first), locks.holds(second)) == (False, True)
            codes = [
                c.code for c in server.requests if c.code != RequestCode.GET_BROKER_CLUSTER_INFO
            ]
            assert codes == [RequestCode.LOCK_BATCH_MQ] * 3 + [RequestCode.UNLOCK_BATCH_MQ]

    asyncio.run(scenario())
