"""The data channel of real hosts: nothing is lost, nothing is put twice, whoever comes and goes."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.hosts import TaskChannel
from headrace.connect.hosts.channel import PolledBatch, Serving, connect, receive, send
from headrace.connect.hosts.launcher import ProcessLauncher
from headrace.connect.records import Queue
from headrace.connect.worker import Counted, Failed, HostSpec, Listens, Started, Stopped
from headrace.errors import HostGoneError, ProcessingError
from headrace.watched import end_process
from tests.connect.hosts.running import (
    SOURCE,
    Heard,
    Places,
    await_that,
    launched,
    launcher_in,
    on_loop,
)

SECOND = timedelta(seconds=1)
Q0, Q1 = Queue("t", "b", 0), Queue("t", "b", 1)


async def source(launcher: ProcessLauncher, **config: Any) -> tuple[Any, Any, TaskChannel]:
    host, heard = await launched(launcher, **config)
    return host, heard, TaskChannel((await heard.first(Started)).address)


def chaos_task(**config: str) -> HostSpec:
    config = {"connector.class": SOURCE, **config}
    return HostSpec(
        kind="task", connector="chaos", task=0, generation=1, config=config, role="source"
    )


async def polled(channel: TaskChannel, batch: int, records: int = 15) -> PolledBatch:
    return await asyncio.to_thread(channel.poll, batch, max_records=records, wait=5 * SECOND)


async def exactly(channel: TaskChannel, batch: int, records: int) -> list[str]:
    """Poll a batch of just so many records."""
    while not await asyncio.to_thread(channel.await_ready, SECOND):
        pass
    return values(await polled(channel, batch, records))


def values(batch: PolledBatch) -> list[str]:
    return [value.decode() for value in batch.rows["value"].to_pylist()]


def numbers(first: int, end: int) -> list[str]:
    return [f"0-{number}" for number in range(first, end)]


def test_what_was_asked_is_answered_before_the_host_ends(tmp_path: Path) -> None:
    asked, answering = threading.Event(), threading.Event()

    def answer(_: dict[str, Any], __: object) -> tuple[dict[str, Any], None]:
        asked.set()
        answering.wait()
        return {"error": "disk full"}, None

    serving = Serving(tmp_path / "data.sock", answer, end_process)
    with connect(tmp_path / "data.sock", 5.0) as client:
        send(client, {"op": "put"}, None)
        asked.wait()
        threading.Timer(0.05, answering.set).start()
        serving.close()
        client.setblocking(False)
        assert receive(client)[0] == {"error": "disk full"}


class _Host:
    """Answers the requests of a sink's channel, and says what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []
        #: Batches of which it takes nothing.
        self.refuses: set[int] = set()
        #: Batches in whose first request the connection breaks.
        self.breaks: set[int] = set()
        self.may_answer = threading.Event()

    def answer(self, header: dict[str, Any], rows: pa.RecordBatch | None) -> Any:
        self.may_answer.wait()
        if header["batch"] in self.breaks:
            self.breaks.remove(header["batch"])
            raise ConnectionError
        count = 0 if rows is None else rows.num_rows
        self.heard.append((header["op"], header["batch"], count))
        if header["op"] == "put" and header["batch"] in self.refuses:
            return {"error": "disk full"}, None
        return {"offsets": header.get("offsets", [])}, None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[_Host, TaskChannel]]:
    told = _Host()
    serving = Serving(tmp_path / "data.sock", told.answer, end_process)
    with TaskChannel(serving.address) as channel:
        yield told, channel
    told.may_answer.set()
    serving.close()


def test_nobody_waits_for_records_that_are_put_ahead(host: tuple[_Host, TaskChannel]) -> None:
    told, channel = host
    channel.put_ahead(1, [(Q0, 0, 3)], rows(Q0, 0, 3))
    assert told.heard == []
    told.may_answer.set()
    channel.put_ahead(1, [(Q0, 3, 5)], rows(Q0, 3, 5))
    assert channel.flush(1, {Q0: 5}) == {Q0: 5}
    assert told.heard == [("put", 1, 3), ("put", 1, 2), ("flush", 1, 0)]


def test_what_became_of_them_is_told_by_the_next_request_of_their_batch(
    host: tuple[_Host, TaskChannel],
) -> None:
    told, channel = host
    told.may_answer.set()
    told.refuses = {1, 2}
    channel.put_ahead(1, [(Q0, 0, 3)], rows(Q0, 0, 3))
    with pytest.raises(ProcessingError, match="disk full"):
        channel.flush(1, {Q0: 3})
    channel.put_ahead(2, [(Q0, 0, 3)], rows(Q0, 0, 3))
    # Whoever broke off the batch before has nothing to do with this one.
    channel.put_ahead(3, [(Q0, 0, 3)], rows(Q0, 0, 3))
    assert channel.flush(3, {Q0: 3}) == {Q0: 3}
    assert [op for op, _, _ in told.heard] == ["put", "put", "put", "flush"]


def test_records_that_were_put_ahead_are_put_again_where_the_connection_breaks(
    host: tuple[_Host, TaskChannel],
) -> None:
    told, channel = host
    told.may_answer.set()
    channel.flush(1, {Q0: 0})
    told.breaks = {2}
    channel.put_ahead(2, [(Q0, 0, 3)], rows(Q0, 0, 3))
    assert channel.flush(2, {Q0: 3}) == {Q0: 3}
    assert not told.breaks
    assert told.heard[1:] == [("put", 2, 3), ("flush", 2, 0)]


@on_loop
async def test_batch_is_given_again_until_it_is_committed(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher)
        with channel:
            first = await polled(channel, 1)
            again = await polled(channel, 1, records=3)
            assert values(again) == values(first)
            assert again.positions == first.positions == [({"task": 0}, {"count": len(first.rows)})]
            second = await polled(channel, 2)
            assert values(second)[0] == f"0-{len(first.rows)}"


@on_loop
async def test_batch_that_was_given_empty_stays_empty(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, _, channel = await source(launcher, paused=True)
        with channel:
            empty = await asyncio.to_thread(channel.poll, 1)
            assert empty.rows.num_rows == 0
            host.pause(paused=False)
            assert await asyncio.to_thread(channel.await_ready, 10 * SECOND)
            # Who asked first may have been heard: nothing that came later may be counted to it.
            assert (await polled(channel, 1)).rows.num_rows == 0
            assert values(await polled(channel, 2))[0] == "0-0"


@on_loop
async def test_rewind_gives_again_what_is_not_committed_and_only_that(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher)
        with channel:
            assert await exactly(channel, 1, 5) == numbers(0, 5)
            assert await exactly(channel, 2, 5) == numbers(5, 10)
            await asyncio.to_thread(channel.committed, 1)
            await asyncio.to_thread(channel.rewind)
            assert await exactly(channel, 2, 7) == numbers(5, 12)


@on_loop
async def test_commit_reaches_the_task_in_its_own_thread(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        host, _, channel = await source(launcher, trace=str(trace))
        with channel:
            await polled(channel, 1)
            await asyncio.to_thread(channel.committed, 1)
        await await_that(lambda: f"commit {host.pid} {host.pid}" in trace.read_text())


@pytest.mark.requirement(21)
@on_loop
async def test_task_goes_on_after_the_positions_that_were_committed(tmp_path: Path) -> None:
    committed: Places = [({"task": 0}, {"count": 100}), ({"task": 1}, {"count": 7})]
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher, positions=committed)
        with channel:
            assert await exactly(channel, 1, 2) == ["0-100", "0-101"]


@on_loop
async def test_source_starts_when_it_is_told_where_it_is_and_not_before(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        heard = Heard()
        await launcher.launch(chaos_task(trace=str(trace)), heard)
        with TaskChannel((await heard.first(Listens)).address) as channel:
            assert not await asyncio.to_thread(channel.await_ready, SECOND / 20)
            assert heard.kinds() == []
            assert not trace.exists()
            elsewhere = [({"task": 0}, {"count": 100}), ({"task": 1}, None)]
            await asyncio.to_thread(channel.begin, 7, [({"task": 1}, {"count": 7})], elsewhere)
            assert await exactly(channel, 8, 2) == ["0-100", "0-101"]
            await heard.first(Started)


@on_loop
async def test_source_that_is_stopped_before_it_may_start_never_starts(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        heard = Heard()
        host = await launcher.launch(chaos_task(trace=str(trace)), heard)
        await heard.first(Listens)
        host.ask_stop()
        assert (await heard.end()).status == 0
        assert heard.kinds() == ["Stopped", "Exited"]
    assert not trace.exists()


@on_loop
async def test_source_begins_anew_where_others_have_committed_and_only_there(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher, trace=str(trace))
        with channel:

            def begin(batch: int, count: int | None, others: int) -> None:
                own = [] if count is None else [({"task": 0}, {"count": count})]
                channel.begin(batch, own, [({"task": 1}, {"count": others})])

            assert await exactly(channel, 4, 2) == ["0-0", "0-1"]
            # The epoch stands on the batch that it was given for; others' work is not its own.
            await asyncio.to_thread(begin, 4, 2, 1)
            assert await exactly(channel, 5, 1) == ["0-2"]
            await asyncio.to_thread(begin, 5, 3, 2)
            assert await exactly(channel, 6, 1) == ["0-3"]
            # Somebody else has committed a batch of that number; then one that forgets.
            await asyncio.to_thread(begin, 6, 200, 2)
            assert await exactly(channel, 7, 2) == ["0-200", "0-201"]
            await asyncio.to_thread(begin, 7, None, 2)
            assert await exactly(channel, 8, 1) == ["0-0"]
    words = [line.split()[0] for line in trace.read_text().splitlines()]
    begins = [one for one in words if one in {"start", "stop"}]
    assert begins[:5] == ["start", "stop", "start", "stop", "start"]


@pytest.mark.defect(14)
@on_loop
async def test_source_is_polled_ahead_as_far_as_there_is_room(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path, ahead_records=30) as launcher:
        _, _, channel = await source(launcher, trace=str(trace))
        # Without any request: three polls of ten records, and no fourth.
        await await_that(lambda: trace.read_text().count("poll") >= 3)
        await asyncio.sleep(0.1)
        assert trace.read_text().count("poll") == 3
        with channel:
            assert len(await exactly(channel, 1, 10)) == 10
            await await_that(lambda: trace.read_text().count("poll") == 4)


@on_loop
async def test_bound_of_bytes_holds_the_poll_back(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with launcher_in(tmp_path, ahead_bytes=1) as launcher:
        _, _, channel = await source(launcher, trace=str(trace))
        await await_that(lambda: "poll" in trace.read_text())
        await asyncio.sleep(0.1)
        assert trace.read_text().count("poll") == 1
        with channel:
            # A bound below one record does not starve anybody.
            given = await asyncio.to_thread(channel.poll, 1, max_bytes=1, wait=SECOND)
            assert given.rows.num_rows >= 1


@on_loop
async def test_idle_task_answers_when_the_wait_is_over(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher, records="0")
        with channel:
            assert not await asyncio.to_thread(channel.await_ready, SECOND / 20)
            given = await asyncio.to_thread(channel.poll, 1, wait=SECOND / 20)
            assert (given.rows.num_rows, given.positions) == (0, [])


@on_loop
async def test_clients_that_die_in_the_middle_of_a_request_harm_nobody(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard, channel = await source(launcher)
        assert await asyncio.to_thread(channel.await_ready, 10 * SECOND)
        with connect(Path(channel.address), 5) as dying:
            dying.sendall(struct.pack(">I", 1000) + b'{"op": "po')
        with connect(Path(channel.address), 5) as dying:
            send(dying, {"op": "poll", "batch": 1, "max_records": 5, "max_bytes": 1 << 20})
            dying.shutdown(socket.SHUT_RDWR)
        with channel:
            assert (await exactly(channel, 1, 5))[0] == "0-0"
            assert "Failed" not in heard.kinds()


@on_loop
async def test_channel_may_be_pickled_and_connects_again(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher)
        with channel:
            first = await polled(channel, 1)
            with pickle.loads(pickle.dumps(channel)) as other:
                assert values(await polled(other, 1)) == values(first)
            assert channel._connected is not None
            channel._connected.shutdown(socket.SHUT_RDWR)
            assert values(await polled(channel, 1)) == values(first)


@on_loop
async def test_channel_says_when_the_host_is_gone(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard, channel = await source(launcher)
        host.kill()
        await heard.end()
        with channel, pytest.raises(HostGoneError, match="host of the task is gone"):
            channel.poll(1)


@on_loop
async def test_request_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await source(launcher)
        with channel, pytest.raises(ProcessingError, match="does not know the request 'flush'"):
            await asyncio.to_thread(channel.flush, 1, {})


def rows(queue: Queue, first: int, end: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": queue.topic,
                "broker": queue.broker,
                "queue": queue.queue_id,
                "offset": offset,
                "key": None,
                "value": f"{queue.queue_id}-{offset}".encode(),
                "properties": [("a", "1")],
                "timestamp": 5,
            }
            for offset in range(first, end)
        ],
        schema=SINK_SCHEMA,
    )


async def sink(launcher: ProcessLauncher, folder: Path, **config: Any) -> tuple[Any, ...]:
    config = {"seen": str(folder / "seen"), "trace": str(folder / "trace"), **config}
    host, heard = await launched(launcher, role="sink", **config)
    return host, heard, TaskChannel((await heard.first(Started)).address)


def seen(folder: Path) -> list[str]:
    return (folder / "seen").read_text().splitlines()


@pytest.mark.requirement(33)
@on_loop
async def test_sink_is_called_in_one_thread_and_in_order(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard, channel = await sink(launcher, tmp_path)
        with channel:
            assert await asyncio.to_thread(channel.open, [Q0], {Q0: 0}) is None
            await asyncio.to_thread(channel.put, 1, [(Q0, 0, 2)], rows(Q0, 0, 2))
            assert await asyncio.to_thread(channel.flush, 1, {Q0: 2}) == {Q0: 2}
            host.ask_stop()
            await heard.first(Stopped)
    calls = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    assert [call[0] for call in calls] == ["start", "open", "put", "flush", "close", "stop"]
    assert {(call[1], call[2]) for call in calls} == {(str(host.pid), str(host.pid))}
    assert seen(tmp_path) == ["0-0", "0-1"]


@on_loop
async def test_records_that_come_again_are_not_put_again(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await sink(launcher, tmp_path)
        with channel:
            await asyncio.to_thread(channel.open, [Q0, Q1], {Q0: 0, Q1: 5})
            await asyncio.to_thread(channel.put, 1, [(Q0, 0, 3)], rows(Q0, 0, 3))
            # A worker died before it heard of it; its successor has more.
            both = pa.concat_batches([rows(Q0, 1, 5), rows(Q1, 4, 6)])
            await asyncio.to_thread(channel.put, 1, [(Q0, 1, 5), (Q1, 4, 6)], both)
    assert seen(tmp_path) == ["0-0", "0-1", "0-2", "0-3", "0-4", "1-5"]


@on_loop
async def test_flush_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await sink(launcher, tmp_path)
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {})
            await asyncio.to_thread(channel.flush, 1, {Q0: 2})
            await asyncio.to_thread(channel.flush, 1, {Q0: 2})
            assert (tmp_path / "trace").read_text().count("flush") == 1
            await asyncio.to_thread(channel.flush, 2, {Q0: 2})
            assert (tmp_path / "trace").read_text().count("flush") == 2


@on_loop
async def test_sink_hears_nobody_who_is_behind_a_later_batch(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await sink(launcher, tmp_path)
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {})
            await asyncio.to_thread(channel.flush, 2, {Q0: 4}, epoch=3)
            for epoch, batch in ((3, 1), (2, 2), (2, 9)):
                with pytest.raises(ProcessingError, match=f"batch {batch} of epoch {epoch}"):
                    await asyncio.to_thread(channel.flush, batch, {Q0: 2}, epoch=epoch)
            assert (tmp_path / "trace").read_text().count("flush") == 1
            await asyncio.to_thread(channel.flush, 1, {Q0: 4}, epoch=4)


@on_loop
async def test_sink_that_was_opened_anew_hears_nobody_of_the_epoch_before(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await sink(launcher, tmp_path)
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {Q0: 0}, fenced=True)
            for fenced in (False, True):
                if fenced:
                    await asyncio.to_thread(channel.fence, 2)
                with pytest.raises(ProcessingError, match="batch 9 of epoch 1 is late"):
                    await asyncio.to_thread(channel.put, 9, [(Q0, 4, 6)], rows(Q0, 4, 6), epoch=1)
                with pytest.raises(ProcessingError, match="batch 9 of epoch 1 is late"):
                    await asyncio.to_thread(channel.flush, 9, {Q0: 6}, epoch=1)
            await asyncio.to_thread(channel.put, 1, [(Q0, 0, 2)], rows(Q0, 0, 2), epoch=2)
            await asyncio.to_thread(channel.flush, 1, {Q0: 2}, epoch=2)
    assert seen(tmp_path) == ["0-0", "0-1"]
    assert (tmp_path / "trace").read_text().count("flush") == 1


@pytest.mark.requirement(35)
@on_loop
async def test_put_that_raises_fails_the_task_and_the_request(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard, channel = await sink(launcher, tmp_path, chaos_put="raise: disk full")
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {})
            with pytest.raises(ProcessingError, match="disk full"):
                await asyncio.to_thread(channel.put, 1, [(Q0, 0, 1)], rows(Q0, 0, 1))
        assert "put(): ChaosError: disk full" in (await heard.first(Failed)).cause.summary
        await heard.end()


@pytest.mark.requirement(23)
@on_loop
async def test_close_that_raises_does_not_skip_stop(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard, channel = await sink(launcher, tmp_path, chaos_close="raise: stuck")
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {})
        host.ask_stop()
        await heard.end()
        assert heard.kinds() == ["Started", "StopRaised", "Exited"]
    assert (tmp_path / "trace").read_text().splitlines()[-1].startswith("stop")


@on_loop
async def test_put_gets_no_more_than_the_config_allows(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        more = {"batch_max_records": "4", "batch_max_bytes": "40"}
        _, _, channel = await sink(launcher, tmp_path, **more)
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {})
            await asyncio.to_thread(channel.put, 1, [(Q0, 0, 10)], rows(Q0, 0, 10))
    calls = (tmp_path / "trace").read_text().splitlines()
    assert sum(call.split()[0] == "put" for call in calls) == 3


@on_loop
async def test_put_that_hangs_ends_with_the_host(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, _, channel = await sink(launcher, tmp_path, chaos_put="hang-hard")
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {})
            put = asyncio.create_task(
                asyncio.to_thread(channel.put, 1, [(Q0, 0, 1)], rows(Q0, 0, 1))
            )
            await await_that(lambda: "put" in (tmp_path / "trace").read_text())
            host.kill()
            with pytest.raises(HostGoneError):
                await put


BOOM: dict[str, Any] = {
    "transforms": "boom",
    "transforms_boom_type": "headrace.connect.testing.chaos.ChaosTransform",
    "transforms_boom_raise_on": "2",
}


@on_loop
async def test_bad_record_fails_a_source_that_does_not_tolerate_it(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        _, heard = await launched(launcher, **BOOM)
        cause = (await heard.first(Failed)).cause
        assert "failed in converters and transforms: ChaosError: record 2 is bad" in cause.summary
        assert "Tolerance exceeded" in cause.trace
        assert counted(heard)[-1]["total-record-errors"] == 1


def counted(heard: Heard) -> list[Mapping[str, int]]:
    return [one.counts for one in heard.events if isinstance(one, Counted)]


@pytest.mark.defect(7)
@on_loop
async def test_bad_record_is_left_out_and_the_position_moves(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        host, heard, channel = await source(launcher, **BOOM, errors_tolerance="all")
        with channel:
            assert await exactly(channel, 1, 3) == ["0-0", "0-2", "0-3"]
            assert (await polled(channel, 1)).positions == [({"task": 0}, {"count": 4})]
            assert (await asyncio.to_thread(channel.counters))["skipped"] == 1
        host.ask_stop()
        await heard.end()
        assert counted(heard)[-1]["total-records-skipped"] == 1


@pytest.mark.defect(6)
@on_loop
async def test_dead_letters_are_kept_until_the_next_batch_is_flushed(tmp_path: Path) -> None:
    policy: dict[str, Any] = {
        "errors_tolerance": "all",
        "errors_deadletterqueue_topic_name": "dead",
    }
    async with launcher_in(tmp_path) as launcher:
        _, _, channel = await sink(launcher, tmp_path, **BOOM, **policy)
        with channel:
            await asyncio.to_thread(channel.open, [Q0], {Q0: 0})
            for _again in range(2):
                await asyncio.to_thread(channel.put, 1, [(Q0, 0, 3)], rows(Q0, 0, 3))
            letters = await asyncio.to_thread(channel.letters, 1)
            assert letters is not None
            assert letters["topic"].to_pylist() == ["dead"]
            assert letters["value"].to_pylist() == [b"0-1"]
            await asyncio.to_thread(channel.flush, 1, {Q0: 3})
            assert await asyncio.to_thread(channel.letters, 1) is not None
            await asyncio.to_thread(channel.flush, 2, {Q0: 3})
            assert await asyncio.to_thread(channel.letters, 1) is None
    assert seen(tmp_path) == ["0-0", "0-2"]


@on_loop
async def test_secrets_of_the_config_are_not_told_in_causes(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "telling.py").write_text(
        "from headrace.connect import Secret, SourceConnector, SourceTask, declare, key\n"
        "class Task(SourceTask):\n"
        "    def start(self, config):\n"
        "        raise OSError('no login with ' + config['password'].reveal())\n"
        "    def poll(self): ...\n"
        "class Telling(SourceConnector):\n"
        "    task = Task\n"
        "    config = declare(key('password', Secret, 'Its word.'))\n"
        "    def task_configs(self, max_tasks): return [{}]\n"
    )
    async with launcher_in(tmp_path, folders=(str(plugins),)) as launcher:
        config: dict[str, Any] = {"connector_class": "telling:Telling", "password": "swordfish"}
        _, heard = await launched(launcher, **config)
        cause = (await heard.first(Failed)).cause
        assert "no login with ********" in cause.summary
        assert "swordfish" not in str(cause)
