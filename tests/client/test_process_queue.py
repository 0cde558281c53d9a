"""What is committed while messages are processed in any order; offsets in a local file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.client import MessageQueue, StoredMessage
from headrace.client._consuming import ProcessQueue
from headrace.client._push_engine import LocalOffsets

QUEUE = MessageQueue("lines", "broker-a", 0)


def messages(*offsets: int) -> list[StoredMessage]:
    return [StoredMessage(topic="lines", queue_offset=offset, size=10) for offset in offsets]


@given(st.sets(st.integers(0, 30), min_size=1), st.data())
def test_nothing_undone_is_ever_committed(offsets: set[int], data: st.DataObject) -> None:
    process = ProcessQueue(QUEUE, 0)
    process.add(messages(*sorted(offsets)), 31)
    undone = set(offsets)
    for offset in data.draw(st.permutations(sorted(offsets))):
        process.done(offset)
        undone.discard(offset)
        assert process.committable == min(undone, default=31)
        assert (len(process), process.bytes) == (len(undone), 10 * len(undone))
        assert process.span == 31 - process.committable


def test_a_stretch_without_messages_moves_the_offset_on() -> None:
    process = ProcessQueue(QUEUE, 5)
    assert process.committable == 5
    process.add([], 9)
    assert process.committable == 9
    process.add(messages(12), 20)
    assert (process.committable, [m.queue_offset for m in process.waiting]) == (12, [12])
    process.done(12)
    process.done(12)
    assert (process.committable, process.bytes) == (20, 0)


def test_a_dropped_queue_holds_nothing() -> None:
    process = ProcessQueue(QUEUE, 0)
    process.add(messages(0, 1), 2)
    process.drop()
    process.done(0)
    assert (len(process), process.bytes, len(process.waiting), process.dropped) == (0, 0, 0, True)


def test_local_offsets_survive_in_the_file_or_its_last_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "g" / "offsets.json"
    offsets = LocalOffsets(path)
    offsets.load()
    assert offsets.get(QUEUE) is None
    offsets.save({QUEUE: 3})
    offsets.save({MessageQueue("lines", "broker-a", 1): 9})
    again = LocalOffsets(path)
    again.load()
    assert (again.get(QUEUE), again.get(MessageQueue("lines", "broker-a", 1))) == (3, 9)
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        again = LocalOffsets(path)
        again.load()
    assert (again.get(QUEUE), again.get(MessageQueue("lines", "broker-a", 1))) == (3, None)
    assert "holds no offsets" in caplog.text


def test_the_file_of_a_java_client_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    # fastjson writes objects as keys.
    path.write_text(
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"lines"}:42\n\t}\n}'
    )
    offsets = LocalOffsets(path)
    offsets.load()
    assert offsets.get(QUEUE) == 42
