"""Every kind of log does the same; what is on disk is still there afterwards."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from headrace.connect.log import (
    LARGEST_RECORD,
    ClusterView,
    CompactedRecord,
    FileLog,
    Log,
    MemoryLog,
    Record,
    TopicUsed,
    fold,
)
from headrace.errors import (
    CorruptLogError,
    MessageTooLargeError,
    StoreError,
    StoreLockedError,
)
from tests.connect.log.samples import put

KINDS = ("memory", "file")
Test = Callable[[Log], Awaitable[None]]


def run(kind: str, folder: Path, test: Test) -> None:
    async def body() -> None:
        log: Log = FileLog(folder) if kind == "file" else MemoryLog()
        try:
            await asyncio.wait_for(test(log), 30)
        finally:
            await log.close()

    asyncio.run(body())


async def everything(
    items: AsyncIterator[tuple[int, Record | CompactedRecord]],
) -> list[tuple[int, str]]:
    return [(position, getattr(record, "name", "")) async for position, record in items]


async def summed(log: Log) -> ClusterView:
    view = ClusterView()
    async for position, record in log.read():
        view, _ = fold(view, record, position)
    return view


def used(number: int) -> TopicUsed:
    return TopicUsed(name=str(number), topic="t")


@pytest.mark.parametrize("kind", KINDS)
def test_positions_follow_each_other_and_reading_begins_anywhere(kind: str, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        assert [await log.append(used(one)) for one in range(4)] == [0, 1, 2, 3]
        assert await log.end() == 4
        assert await everything(log.read(2)) == [(2, "2"), (3, "3")]
        assert await everything(log.read(4)) == []

    run(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_many_at_once_get_a_position_each(kind: str, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        positions = await asyncio.gather(*(log.append(used(one)) for one in range(600)))
        assert sorted(positions) == list(range(600))
        found = dict(await everything(log.read()))
        assert [found[position] for position in positions] == [str(one) for one in range(600)]

    run(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_who_follows_sees_what_comes_later(kind: str, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        seen: list[int] = []

        async def follow() -> None:
            async for position, _ in log.follow(1):
                seen.append(position)
                if position == 3:
                    return

        await log.append(used(0))
        follower = asyncio.create_task(follow())
        for one in range(1, 4):
            await log.append(used(one))
        await follower
        assert seen == [1, 2, 3]

    run(kind, tmp_path, test)


@pytest.mark.defect(12)
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_above_the_limit_is_refused_and_not_dropped(kind: str, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        with pytest.raises(MessageTooLargeError, match="connector 'a'"):
            await log.append(put("a", x="y" * LARGEST_RECORD))
        assert await log.append(put("a", x="y" * (LARGEST_RECORD - 1000))) == 0

    run(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compaction_keeps_the_sum_and_positions_go_on(kind: str, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        for number in range(50):
            await log.append(put("ab"[number % 2], x=str(number)))
        view = await summed(log)
        assert await log.compact(view)
        assert len(await everything(log.read())) == 2
        assert (await summed(log)).entries == view.entries
        # One that is behind gets all sums, wherever it stands.
        assert len(await everything(log.read(49))) == 2
        assert await log.append(put("c")) == 50
        assert len(await everything(log.read(50))) == 1

    run(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compaction_that_lacks_a_record_does_nothing(kind: str, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        await log.append(put("a"))
        view = await summed(log)
        await log.append(put("b"))
        assert not await log.compact(view)
        assert len(await everything(log.read())) == 2

    run(kind, tmp_path, test)


def reopened(folder: Path) -> ClusterView:
    found = ClusterView()

    async def test(log: Log) -> None:
        nonlocal found
        found = await summed(log)

    run("file", folder, test)
    return found


def filled(folder: Path, *records: Record) -> Path:
    async def test(log: Log) -> None:
        for record in records:
            await log.append(record)

    run("file", folder, test)
    return folder / "connect.log"


@pytest.mark.requirement(11)
def test_marks_of_deleted_connectors_survive_on_disk(tmp_path: Path) -> None:
    from headrace.connect.log import ConnectorDeleted

    filled(tmp_path, put("a"), ConnectorDeleted(request="", name="a"))
    view = reopened(tmp_path)
    assert view.entries["a"].deleted
    assert not view.connectors()


def test_a_log_that_was_compacted_opens_again_and_goes_on(tmp_path: Path) -> None:
    async def compact(log: Log) -> None:
        assert await log.compact(await summed(log))
        assert await log.append(put("c")) == 3

    filled(tmp_path, put("a"), put("b"), put("a"))
    run("file", tmp_path, compact)
    view = reopened(tmp_path)
    assert set(view.connectors()) == {"a", "b", "c"}
    assert view.position == 3


def test_an_empty_log_that_was_compacted_does_not_begin_at_0_again(tmp_path: Path) -> None:
    async def compact(log: Log) -> None:
        assert await log.compact(await summed(log))

    async def append(log: Log) -> None:
        assert await log.append(put("c")) == 2

    filled(tmp_path, used(1), used(2))
    run("file", tmp_path, compact)
    run("file", tmp_path, append)


@pytest.mark.requirement(16)
@pytest.mark.parametrize("bytes_lost", [1, 2, 5, 20])
def test_a_torn_end_is_cut_off_and_kept_aside(
    bytes_lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = filled(tmp_path, put("a"), put("b"))
    content = file.read_bytes()
    file.write_bytes(content[:-bytes_lost])
    assert set(reopened(tmp_path).connectors()) == {"a"}
    assert "left unfinished" in caplog.text
    assert content.endswith(b"\n")
    assert (tmp_path / "connect.log.torn").read_bytes() in content
    filled(tmp_path, put("c"))
    assert set(reopened(tmp_path).connectors()) == {"a", "c"}


def test_every_cut_of_the_file_leaves_a_beginning_of_the_log(tmp_path: Path) -> None:
    file = filled(tmp_path, put("a"), put("b"), put("c"))
    content = file.read_bytes()
    header = content.index(b"\n") + 1
    for size in range(header, len(content), 7):
        file.write_bytes(content[:size])
        whole = content[:size].count(b"\n") - 1
        assert set(reopened(tmp_path).connectors()) == set("abc"[:whole])


def test_a_damaged_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    file = filled(tmp_path, put("a"), put("b"), put("c"))
    content = bytearray(file.read_bytes())
    content[content.index(b'"name":"b"') + 8] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptLogError, match=r"damaged at byte \d+, behind position 0"):
        reopened(tmp_path)
    assert file.read_bytes() == content


def test_a_line_that_is_missing_is_noticed(tmp_path: Path) -> None:
    file = filled(tmp_path, put("a"), put("b"), put("c"))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[3]]))
    with pytest.raises(CorruptLogError, match="jumps from position 1 to 2"):
        reopened(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00" * 100])
def test_a_file_that_is_no_log_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "connect.log").write_bytes(content)
    with pytest.raises(CorruptLogError, match="does not begin"):
        reopened(tmp_path)


APPENDING = """
import asyncio, sys
from pathlib import Path
from headrace.connect.log import FileLog, ConnectorPut

async def main():
    log = FileLog(Path(sys.argv[1]))
    for number in range(100_000):
        await log.append(ConnectorPut(request=str(number), name=str(number), config={}))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.requirement(16)
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if int(line) >= 40:
                break
        child.send_signal(signal.SIGKILL)
        acknowledged = 41 + child.stdout.read().count("\n")
    child.wait(30)
    names = {int(name) for name in reopened(tmp_path).connectors()}
    assert names >= set(range(acknowledged))
    assert names == set(range(len(names)))


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        with child.stdout:
            child.stdout.readline()
            with pytest.raises(StoreLockedError, match=f"process {child.pid}"):
                reopened(tmp_path)
    finally:
        child.kill()
        child.wait(30)


FILLING = """
import asyncio, resource, signal, sys
from pathlib import Path
from headrace.connect.log import FileLog, ConnectorPut
from headrace.errors import StoreFullError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

async def main():
    log = FileLog(Path(sys.argv[1]))
    for number in range(100):
        try:
            await log.append(ConnectorPut(request="", name=str(number), config={"x": "y" * 500}))
        except StoreFullError as error:
            break
    print(number)
    await log.append(ConnectorPut(request="", name="small", config={}))

asyncio.run(main())
"""


def test_a_full_disk_loses_nothing_and_leaves_no_half_a_record(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILLING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = {str(one) for one in range(int(done.stdout))}
    assert kept
    assert set(reopened(tmp_path).connectors()) == kept | {"small"}


def test_a_closed_log_takes_nothing_more(tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        await log.close()
        with pytest.raises(StoreError, match="closed"):
            await log.append(used(1))

    run("file", tmp_path, test)


def test_one_who_gives_up_waiting_harms_no_other(tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        first = asyncio.create_task(log.append(used(1)))
        second = asyncio.create_task(log.append(used(2)))
        await asyncio.sleep(0)
        first.cancel()
        assert await second in {0, 1}
        assert await log.append(used(3)) == await log.end() - 1

    run("file", tmp_path, test)
