"""What a sink task asks its context for: it is done, whatever the engine is about."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connect.channel import ChildEnd, HostCommand, HostMessage, Messages, Told
from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.hosts import TaskChannel
from headrace.connect.hosts.life import Life
from headrace.connect.hosts.sink_unit import SinkUnit
from headrace.connect.lifecycle import SeekAsked, WaitsFor
from headrace.connect.plugins import SinkTaskContext
from headrace.connect.records import Queue
from headrace.errors import ProcessingError
from tests.connect.hosts.asking import AskingTask

Q0, Q1 = Queue("t", "b", 0), Queue("t", "b", 1)


class Host:
    """A sink task in this process, as its engine reaches it."""

    def __init__(self, folder: Path, **config: str) -> None:
        AskingTask.calls, AskingTask.asks = [], {}
        self._worker, end = socket.socketpair()
        self._worker.setblocking(False)
        self._messages = Messages(HostMessage)
        self._heard: list[Any] = []
        self._control = ChildEnd(end, HostCommand)
        texts = {
            "name": "asking",
            "connector.class": "tests.connect.hosts.asking:AskingConnector",
            "topics": "t",
            "batch.max.records": "2",
            **config,
        }
        told = Told(
            kind="task",
            role="sink",
            connector="asking",
            generation=1,
            config=texts,
            address=str(folder / "data.sock"),
        )
        self._life = Life(self._control, told.who)
        self.unit = SinkUnit(told, self._control, self._life)
        self.unit.make()
        self.channel = TaskChannel(self.unit.start())
        self._work = threading.Thread(target=self.unit.work)
        self._work.start()
        self._others = ThreadPoolExecutor(1)

    @property
    def context(self) -> SinkTaskContext:
        return self.unit.instance.context

    def put(self, *ranges: tuple[Queue, int, int], epoch: int = 1) -> None:
        rows = [row(queue, at) for queue, first, end in ranges for at in range(first, end)]
        table = pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA)
        self.channel.put(1, ranges, table, epoch=epoch)

    def flush(self, ends: dict[Queue, int], epoch: int = 1) -> Future[Any]:
        """Flush, as another thread of the engine does."""

        def flush() -> dict[Queue, int]:
            with TaskChannel(self.channel.address) as other:
                return other.flush(1, ends, epoch=epoch)

        return self._others.submit(flush)

    def told(self) -> list[Any]:
        """Return what the worker has heard."""
        with contextlib.suppress(BlockingIOError):
            self._heard += self._messages.feed(self._worker.recv(1 << 16))
        return self._heard

    def close(self) -> None:
        self._life.stopping.set()
        self.unit.wake()
        self._work.join()
        self.unit.stop()
        self._others.shutdown()
        self.channel.close()
        self._control.close()
        self._worker.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.002)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def row(queue: Queue, offset: int) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.queue_id,
        "offset": offset,
        "value": b"x",
    }


def test_a_commit_that_is_asked_for_flushes_in_the_middle_of_a_batch(host: Host) -> None:
    AskingTask.asks["put 0-0 0-1"] = lambda context: context.request_commit()
    host.channel.open([Q0])
    host.put((Q0, 0, 4))
    assert AskingTask.calls[1:] == ["put 0-0 0-1", "flush 0-2", "put 0-2 0-3"]
    # Nobody waits for the next records.
    host.context.request_commit()
    until(lambda: AskingTask.calls[-1] == "flush 0-4")
    assert host.flush({Q0: 4}).result() == {Q0: 4}
    assert AskingTask.calls[-2:] == ["flush 0-4", "flush 0-4"]


def test_what_is_to_be_a_dead_letter_is_not_left_behind_by_an_early_flush(tmp_path: Path) -> None:
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead"}
    bad = {"value.converter": "json", "value.converter.schemas.enable": "false"}
    host = Host(tmp_path, **letters, **bad)
    try:
        host.channel.open([Q0])
        host.put((Q0, 0, 2))
        host.context.request_commit()
        assert host.flush({Q0: 2}).result() == {Q0: 2}
        assert AskingTask.calls == ["open 1", "flush 0-2"]
        assert host.channel.letters(1) is not None
    finally:
        host.close()


def test_records_of_a_paused_queue_wait_and_so_does_the_end_of_their_batch(host: Host) -> None:
    AskingTask.asks["put 0-0 0-1"] = lambda context: context.pause(Q0)
    host.channel.open([Q0, Q1])
    host.put((Q0, 0, 4), (Q1, 7, 8))
    host.put((Q0, 4, 5), (Q1, 8, 9))
    flushing = host.flush({Q0: 5, Q1: 9})
    waits = WaitsFor("the task to resume t@b@0")
    until(lambda: waits in host.told())
    assert AskingTask.calls[1:] == ["put 0-0 0-1", "put 1-7", "put 1-8"]
    assert not flushing.done()
    host.context.resume(Q0)
    assert flushing.result() == {Q0: 5, Q1: 9}
    assert AskingTask.calls[4:] == ["put 0-2 0-3", "put 0-4", "flush 0-5 1-9"]
    assert host.told()[-1] == WaitsFor()


def test_paused_records_come_once_though_their_batch_comes_again(host: Host) -> None:
    host.context.pause(Q0)
    host.channel.open([Q0], fenced=True)
    host.channel.fence(1)
    host.put((Q0, 0, 2))
    late = host.flush({Q0: 2})
    host.channel.fence(2)
    with pytest.raises(ProcessingError, match="is late"):
        late.result()
    host.put((Q0, 0, 2), epoch=2)
    host.context.resume(Q0)
    assert host.flush({Q0: 2}, epoch=2).result() == {Q0: 2}
    assert AskingTask.calls[1:] == ["put 0-0 0-1", "flush 0-2"]


def test_an_offset_ahead_leaves_records_out_of_the_same_batch(host: Host) -> None:
    AskingTask.asks["put 0-0 0-1"] = lambda context: context.offset(Q0, 5)
    host.channel.open([Q0])
    host.put((Q0, 0, 6))
    assert AskingTask.calls[1:] == ["put 0-0 0-1", "put 0-5"]
    assert not any(isinstance(one, SeekAsked) for one in host.told())


def test_an_offset_behind_is_where_the_query_begins_anew(host: Host) -> None:
    host.channel.open([Q0], {Q0: 4}, fenced=True)
    host.channel.fence(1)
    AskingTask.asks["put 0-4 0-5"] = lambda context: context.offset(Q0, 1)
    host.put((Q0, 4, 8))
    assert host.told().count(SeekAsked()) == 1
    late = host.flush({Q0: 8})
    # Nothing that is behind the wish is put or committed any more.
    assert host.channel.open([Q0], {Q0: 4}, fenced=True) == {Q0: 1}
    with pytest.raises(ProcessingError, match="is late"):
        late.result()
    host.channel.fence(2)
    host.put((Q0, 1, 3), epoch=2)
    assert AskingTask.calls == ["open 1", "put 0-4 0-5", "open 1", "put 0-1 0-2"]
    assert host.channel.open([Q0], {Q0: 4}, fenced=True) is None


def test_queues_begin_where_the_task_says_in_open(host: Host) -> None:
    AskingTask.asks["open 2"] = lambda context: context.offsets({Q0: 9, Q1: 0})
    assert host.channel.open([Q0, Q1], {Q0: 4, Q1: 4}, fenced=True) == {Q0: 9, Q1: 0}
    assert SeekAsked() not in host.told()
