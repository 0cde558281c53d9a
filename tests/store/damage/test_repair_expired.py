"""Verification and repairs of a store whose oldest segments retention has deleted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.store import MessageStore
from headrace.store.damage.examination import examine_store, repair_store
from headrace.store.entries import EntryKind, parse_header
from tests.store.compacted import HOUR, Clock, compacting
from tests.store.damage.test_repair import agree, damage, held_by
from tests.store.samples import UnsyncedOps, append_of, copy_store, log_files

SMALL = compacting(segment_size=1200)


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, clock = tmp_path_factory.mktemp("expired"), Clock()
    with MessageStore.open(path, SMALL, ops=UnsyncedOps(), clock=clock) as store:
        for number in range(60):
            store.append([append_of("lines", number % 3, [b"%d" % number * 9] * 2)]).result()
            if number == 5:
                store.append([append_of("early", 0, [b"once"])]).result()
            if number == 25:
                clock.now += 2 * HOUR
        store.expire()
        assert store.statistics().begin > 0
        assert store.bounds("early", 0).max_offset == 1
    return path


def opened(path: Path) -> MessageStore:
    return MessageStore.open(path, SMALL, ops=UnsyncedOps(), clock=Clock())


def test_a_log_that_begins_late_is_good(expired: Path, tmp_path: Path) -> None:
    path = copy_store(expired, tmp_path / "store")
    assert [str(found) for found in examine_store(path, deep=True).damage] == []
    assert not repair_store(path, agree, ops=UnsyncedOps())
    (path / "checkpoint").unlink()
    assert [str(found) for found in examine_store(path, deep=True).damage] == []


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.soak) for n in range(8, 300))]
)
def test_after_random_damage_the_rest_is_readable(expired: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = copy_store(expired, tmp_path / "store")
    with opened(path) as store:
        before = held_by(store)
        ends = {key: store.bounds(*key).max_offset for key in store.queues()}
    for _ in range(chance.randint(1, 3)):
        damage(path, chance)
    lost = {
        (loss.topic, loss.queue_id) for found in examine_store(path).damage for loss in found.losses
    }
    plan = repair_store(path, agree, ops=UnsyncedOps())
    assert plan is not None
    gone = {
        (loss.topic, loss.queue_id, n) for loss in plan.losses for n in range(loss.first, loss.end)
    }
    assert {key[:2] for key in gone} <= lost
    assert examine_store(path).damage == []
    with opened(path) as store:
        after = held_by(store)
        for key, records in after.items():
            assert records.items() <= before[key].items()
        begins = {key: store.bounds(*key).min_offset for key in before}
        for key, records in before.items():
            missing = {n for n in records if n not in after.get(key, {})}
            # Lost and named; or before the log's first byte, when the oldest files are gone.
            assert all((*key, n) in gone or n < begins[key] for n in missing)
            assert store.bounds(*key).max_offset == ends[key]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_state_of_the_oldest_segment_is_made_again(
    expired: Path, tmp_path: Path, checkpoint: bool
) -> None:
    path = copy_store(expired, tmp_path / "store")
    with opened(path) as store:
        before = held_by(store)
        ends = {key: store.bounds(*key).max_offset for key in store.queues()}
    if not checkpoint:
        (path / "checkpoint").unlink()
    first = log_files(path)[0]
    content = bytearray(first.read_bytes())
    entry = parse_header(content, 0, int(first.stem))
    assert entry is not None
    assert entry.kind is EntryKind.STATE
    content[60] ^= 1
    first.write_bytes(bytes(content))
    found = examine_store(path).damage
    assert [(each.path, each.offset) for each in found] == [(first, 0)]
    assert repair_store(path, agree, ops=UnsyncedOps())
    assert examine_store(path).damage == []
    with opened(path) as store:
        assert held_by(store) == before
        assert {key: store.bounds(*key).max_offset for key in store.queues()} == ends


def test_oldest_files_that_are_gone_are_told(expired: Path, tmp_path: Path) -> None:
    path = copy_store(expired, tmp_path / "store")
    log_files(path)[0].unlink()
    [found] = examine_store(path).findings
    assert found.severity == "remark"
    assert "deleted by retention, or are lost" in found.means
    with opened(path) as store:
        assert store.bounds("lines", 0).max_offset == 40
