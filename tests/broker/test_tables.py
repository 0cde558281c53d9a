from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker, snapshots
from headrace.broker.clients import QueueLocks
from headrace.broker.offsets import ConsumerOffsets
from headrace.broker.snapshots import load_snapshot, save_snapshot
from headrace.broker.waiting import LongPolls
from headrace.errors import CorruptLogError

Table = dict[str, dict[str, dict[int, int]]]


def nothing() -> None:
    pass


def test_offsets_are_kept_by_group_topic_and_queue() -> None:
    offsets = ConsumerOffsets()
    offsets.update("g", "t", 1, 10)
    offsets.update("h", "t", 1, 20)
    assert [offsets.get(*key) for key in [("g", "t", 1), ("h", "t", 1), ("g", "t", 0)]] == [
        10,
        20,
        None,
    ]
    assert offsets.topics_of("g") == ["t"]
    assert offsets.groups_of("t") == ["g", "h"]


def test_offsets_survive_a_snapshot(tmp_path: Path) -> None:
    offsets = ConsumerOffsets()
    offsets.update("g", "t", 1, 10)
    save_snapshot(tmp_path / "offsets.json", offsets.table())
    again = ConsumerOffsets(load_snapshot(tmp_path / "offsets.json", Table))
    assert again.get("g", "t", 1) == 10


def test_a_save_that_the_end_breaks_off_is_over_before_the_last_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on in its thread, and writes the same file."""
    begun, ended = threading.Event(), [0, 0]

    def slow(path: Path, table: object) -> None:
        ended[0] += 1
        assert ended[0] == ended[1] + 1, "two at once"
        begun.set()
        time.sleep(0.2)
        save_snapshot(path, table)
        ended[1] += 1

    monkeypatch.setattr(snapshots, "save_snapshot", slow)
    with EmbeddedBroker(tmp_path) as broker:
        kept, loop = broker._server._core, broker._loop
        assert kept is not None
        assert loop is not None
        loop.call_soon_threadsafe(kept.tables.ensure_topic, "new", 1)
        assert begun.wait(5)
    assert ended[0] == ended[1] > 1
    assert "new" in (tmp_path / "topics.json").read_text()


def test_reset_is_told_until_a_client_goes_on_from_there_and_hides_commits_until_then() -> None:
    offsets = ConsumerOffsets()
    offsets.update("g", "t", 0, 50)
    offsets.reset("g", "t", {0: 5})

    def told(peer: int, pulled: int) -> int | None:
        return offsets.reset_for("g", "t", 0, peer=peer, pulled=pulled)

    assert told(1, 50) == 5, "of one that has given the queue up since"
    assert told(2, 50) == 5
    offsets.update("g", "t", 0, 51)
    assert offsets.get("g", "t", 0) == 5
    assert told(2, 50) == 5, "the answer was lost"
    assert told(3, 5) == 5, "what it has read ahead must go"
    assert told(2, 5) is None
    offsets.update("g", "t", 0, 6)
    assert offsets.get("g", "t", 0) == 6
    assert told(1, 50) is None
    offsets.reset("g", "t", {0: 7})
    assert [told(1, 50) for _ in range(4)] == [7, 7, 7, None]


def test_forgetting_a_topic_or_group_leaves_the_others() -> None:
    offsets = ConsumerOffsets()
    for group in "gh":
        for topic in "tu":
            offsets.update(group, topic, 0, 1)
    offsets.forget_topic("t")
    offsets.forget_group("h")
    assert offsets.table() == {"g": {"u": {0: 1}}}


def test_version_rises_with_every_change() -> None:
    offsets = ConsumerOffsets()
    offsets.update("g", "t", 0, 1)
    before = offsets.version
    offsets.forget_group("g")
    assert offsets.version > before


def test_arrival_wakes_each_request_of_the_queue_once() -> None:
    polls = LongPolls()
    both = polls.add([("t", 0), ("t", 1)], owner=1, wake=nothing)
    other = polls.add([("t", 1)], owner=2, wake=nothing)
    assert polls.arrived([("u", 0)]) == []
    assert polls.arrived([("t", 0), ("t", 1)]) in ([both, other], [other, both])
    assert polls.arrived([("t", 1)]) == []
    assert len(polls) == 0


def test_requests_of_a_closed_connection_are_abandoned() -> None:
    polls = LongPolls()
    polls.add([("t", 0)], owner=1, wake=nothing)
    kept = polls.add([("t", 0)], owner=2, wake=nothing)
    polls.abandon(1)
    assert polls.arrived([("t", 0)]) == [kept]


def test_expired_request_is_taken_out_once() -> None:
    polls = LongPolls()
    poll = polls.add([("t", 0)], owner=1, wake=nothing)
    assert polls.remove(poll)
    assert not polls.remove(poll)


def test_lock_belongs_to_one_client_until_it_ends() -> None:
    locks = QueueLocks(60)
    queues = [("t", 0), ("t", 1)]
    assert locks.acquire("g", "a", queues, now=0) == queues
    assert locks.acquire("g", "b", queues, now=30) == []
    assert locks.acquire("other", "b", queues, now=30) == queues
    assert locks.acquire("g", "a", queues[:1], now=30) == queues[:1]
    assert locks.acquire("g", "b", queues, now=60) == queues[1:]


def test_only_the_holder_releases_a_lock() -> None:
    locks = QueueLocks(60)
    locks.acquire("g", "a", [("t", 0)], now=0)
    locks.release("g", "b", [("t", 0)])
    assert locks.acquire("g", "b", [("t", 0)], now=1) == []
    locks.release("g", "a", [("t", 0)])
    assert locks.acquire("g", "b", [("t", 0)], now=1) == [("t", 0)]


def test_snapshot_that_was_never_saved_is_none(tmp_path: Path) -> None:
    assert load_snapshot(tmp_path / "missing.json", Table) is None


def test_snapshot_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "table.json"
    save_snapshot(file, {"g": {"t": {0: 1}}})
    save_snapshot(file, {"g": {"t": {0: 2}}})
    assert load_snapshot(file, Table) == {"g": {"t": {0: 2}}}
    assert [path.name for path in file.parent.iterdir()] == ["table.json"]


def test_damaged_snapshot_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text("{")
    with pytest.raises(CorruptLogError, match=r"table\.json"):
        load_snapshot(file, Table)
