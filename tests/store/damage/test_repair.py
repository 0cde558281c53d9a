"""Repairs: whatever is damaged, what is not stays readable, and nothing is invented."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from headrace.errors import StoreError, StoreLockedError
from headrace.protocol.transactions import CommitRecord
from headrace.store import MessageStore, StageKey
from headrace.store.damage.examination import apply_repair, examine_store, plan_repair, repair_store
from headrace.store.entries import MAGIC, EntryKind, parse_header
from headrace.store.keys.finding import KeyQuery
from tests.store.compacted import compacting, opened, put
from tests.store.faulty_files import Killed, KilledAt
from tests.store.samples import (
    UnsyncedOps,
    append_of,
    chunk_of,
    copy_store,
    log_bytes,
    log_files,
    section_of,
    settings,
    split,
)

SMALL = settings(segment_size=2500, index_file_units=8)
Key = tuple[str, int]


@dataclass
class Sample:
    """A store, what it held, and the bytes of its log."""

    path: Path
    held: dict[Key, dict[int, bytes]]
    births: dict[Key, int]
    #: Begin, end and kind of every entry.
    entries: list[tuple[int, int, EntryKind]]
    log: bytes


def held_by(store: MessageStore) -> dict[Key, dict[int, bytes]]:
    """Every record that can be read, by queue and offset."""
    found: dict[Key, dict[int, bytes]] = {}
    for key in store.queues():
        records = found[key] = {}
        offset = store.bounds(*key).min_offset
        while (result := store.read(*key, offset, 50, 1 << 30)).count:
            for record in split(result.slices):
                at = int.from_bytes(record[20:28], "big")
                assert at >= offset
                records[at] = record
                offset = at + 1
            offset = result.next_offset
        assert offset <= store.bounds(*key).max_offset
    return found


def bytes_by_position(path: Path) -> dict[int, bytes]:
    return {int(file.stem): file.read_bytes() for file in log_files(path)}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("sample")
    chance = random.Random(4)
    with MessageStore.open(path, SMALL, ops=UnsyncedOps()) as store:
        for number in range(40):
            if number % 5 == 4:
                key = StageKey("job", 1, number, 0, 0, 0)
                sections = [section_of("counts", q, [b"u%d" % number] * (q + 1)) for q in range(3)]
                store.stage(key, 0, chunk_of(*sections))
                store.commit_unit([key], [append_of("commits", 0, [b"%d" % number])]).result()
                store.drop_staged("job", lambda _: False)
            elif number == 17:
                store.delete_topic("short").result()
            else:
                topic = "short" if number in (3, 8, 20, 33) else "lines"
                bodies = [b"%d-" % number * chance.randint(1, 60)] * chance.randint(1, 3)
                store.append([append_of(topic, chance.randint(0, 2), bodies)]).result()
        held = held_by(store)
        births = {key: store._catalog.view(key).birth for key in held}
    parts = bytes_by_position(path)
    log = b"".join(parts[base] for base in sorted(parts))
    entries, at = [], 0
    while at < len(log):
        entry = parse_header(log, at, at)
        assert entry is not None
        entries.append((at, entry.end, entry.kind))
        at = entry.end
    assert len(parts) > 4
    return Sample(path, held, births, entries, log)


def agree(_plan: object) -> bool:
    return True


def damage(path: Path, chance: random.Random) -> None:
    """Do something bad to the log."""
    file = chance.choice(log_files(path))
    content = bytearray(file.read_bytes())
    at = chance.randrange(len(content)) if content else 0
    what = chance.choice(["flip", "flip", "zeros", "noise", "cut", "lost", "longer"])
    if what == "flip" and content:
        content[at] ^= 1 << chance.randrange(8)
    elif what == "zeros":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    elif what == "noise":
        content[at : at + 90] = chance.randbytes(len(content[at : at + 90]))
    elif what == "cut":
        del content[at:]
    elif what == "longer":
        content += chance.randbytes(chance.randrange(1, 700))
    file.write_bytes(bytes(content))
    if what == "lost":
        file.unlink()


def intact(sample: Sample, path: Path) -> list[tuple[int, int, EntryKind]]:
    """The entries of which every byte is still there."""
    parts = bytes_by_position(path)
    bases = sorted(base for base in (int(file.stem) for file in log_files(sample.path)))
    kept = []
    for begin, end, kind in sample.entries:
        base = max(base for base in bases if base <= begin)
        here = parts.get(base, b"")[begin - base : end - base]
        if here == sample.log[begin:end]:
            kept.append((begin, end, kind))
    return kept


def check_repaired(sample: Sample, path: Path, kept: list[tuple[int, int, EntryKind]]) -> None:
    """I1 to I4, and I6: what was undamaged is there, nothing else is, offsets stay taken."""
    ranges = [(begin, end) for begin, end, kind in kept if kind is EntryKind.DATA]
    with MessageStore.open(path, SMALL, ops=UnsyncedOps()) as store:
        found = held_by(store)
        for key, records in sample.held.items():
            for offset, record in records.items():
                position = int.from_bytes(record[28:36], "big")
                if any(begin <= position < end for begin, end in ranges):
                    assert found[key].get(offset) == record, (key, offset)
            assert store.bounds(*key).max_offset >= max(records) + 1
            # The name of a compaction log has the birth in it.
            assert store._catalog.view(key).birth == sample.births[key]
        for key, records in found.items():
            for offset, record in records.items():
                assert sample.held[key][offset] == record
        [result] = store.append([append_of("lines", 0, [b"next"])]).result()
        assert result.first_offset > max(sample.held["lines", 0])
        found = held_by(store)
    with MessageStore.open(path, SMALL, ops=UnsyncedOps()) as store:
        assert held_by(store) == found


@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(15, 1000))]
)
def test_after_random_damage_every_undamaged_record_is_readable(
    sample: Sample, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path = copy_store(sample.path, tmp_path / "store")
    for _ in range(chance.randint(1, 4)):
        if log_files(path):
            damage(path, chance)
    kept = intact(sample, path)
    before = bytes_by_position(path)
    plan = repair_store(path, agree, ops=UnsyncedOps())
    assert plan is not None
    changed = {base for base, part in bytes_by_position(path).items() if before.get(base) != part}
    for base in (changed | before.keys() - bytes_by_position(path).keys()) & before.keys():
        # What was replaced is kept.
        assert (plan.aside / "log" / f"{base:020d}.log").read_bytes() == before[base]
    assert [str(each) for each in examine_store(path).damage] == []
    again = repair_store(path, agree, ops=UnsyncedOps())
    assert not again, again.log
    check_repaired(sample, path, kept)


def test_a_good_store_is_left_alone(sample: Sample, tmp_path: Path) -> None:
    path = copy_store(sample.path, tmp_path / "store")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert [str(each) for each in examine_store(path).damage] == []
    assert not repair_store(path, agree)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_nothing_is_changed_without_consent(sample: Sample, tmp_path: Path) -> None:
    path = copy_store(sample.path, tmp_path / "store")
    damage(path, random.Random(1))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert repair_store(path, lambda _plan: False) is None
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def _damaged_twice(sample: Sample, path: Path) -> list[tuple[int, int, EntryKind]]:
    """Lose a segment's STATE, a record in the middle, and a whole segment."""
    copy_store(sample.path, path)
    files = log_files(path)
    for file, at in ((files[2], 50), (files[3], 1200)):
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        file.write_bytes(bytes(content))
    files[5].unlink()
    return intact(sample, path)


def _operations(sample: Sample, path: Path) -> int:
    _damaged_twice(sample, path)
    ops = KilledAt(1 << 30)
    apply_repair(plan_repair(path, ops), ops)
    return ops.done


@pytest.fixture(scope="module")
def steps(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> int:
    return _operations(sample, tmp_path_factory.mktemp("steps") / "store")


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.soak] * (part > 0)) for part in range(6)]
)
def test_a_repair_may_be_killed_at_every_file_operation(
    sample: Sample, tmp_path: Path, steps: int, part: int
) -> None:
    assert 30 < steps < 200
    for step in range(1 + part, steps + 1, 6):
        path = tmp_path / "store"
        kept = _damaged_twice(sample, path)
        ops = KilledAt(step)
        with pytest.raises(Killed):
            apply_repair(plan_repair(path, UnsyncedOps()), ops)
        repair_store(path, agree, ops=UnsyncedOps())
        check_repaired(sample, path, kept)


def test_a_store_in_use_is_examined_but_not_repaired(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL) as store:
        store.append([append_of("lines", 0, [b"x"] * 30)]).result()
        found = examine_store(tmp_path)
        assert (found.damage, found.records) == ([], 30)
        assert found.open_in is not None
        with pytest.raises(StoreLockedError):
            repair_store(tmp_path, agree)


def test_a_folder_without_a_store_is_named(tmp_path: Path) -> None:
    for call in (examine_store, lambda path: repair_store(path, agree)):
        with pytest.raises(StoreError, match="holds no store"):
            call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_search_by_key_passes_over_what_is_lost(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, settings(segment_size=600)) as store:
        for number in range(12):
            properties = b"KEYS\x01k%d\x02" % (number % 3)
            store.append([append_of("lines", 0, [b"%d" % number], properties)]).result()
        query = KeyQuery(topic="lines", word="k1")
        before = store.keys.find(query)
        assert len(before) == 4
    victim = before[1]
    position = int.from_bytes(victim[28:36], "big")
    file = max(file for file in log_files(tmp_path) if int(file.stem) <= position)
    content = bytearray(file.read_bytes())
    content[position - int(file.stem) + 90] ^= 1
    file.write_bytes(bytes(content))
    assert repair_store(tmp_path, agree)
    with MessageStore.open(tmp_path, settings(segment_size=600)) as store:
        assert store.keys.find(query) == [each for each in before if each != victim]


def test_what_is_no_commit_in_a_commit_topic_is_named(tmp_path: Path) -> None:
    commit = msgspec.json.encode(CommitRecord(job="j", kind="open", epoch=1, batch=0, timestamp=1))
    with MessageStore.open(tmp_path, settings(segment_size=500)) as store:
        for topic in ("j-commitTopic", "gone-commitTopic", "lines"):
            for body in (commit, b"hello", b"[]", commit):
                store.append([append_of(topic, 0, [body])]).result()
        store.delete_topic("gone-commitTopic").result()
    found = examine_store(tmp_path)
    assert found.damage == []
    (remark,) = found.findings
    assert "2 records are no commits: topic 'j-commitTopic', queue 0, offset 1 to 2" in remark.text
    assert (remark.path, remark.offset) == place_of(log_files(tmp_path), b"hello")
    assert not repair_store(tmp_path, lambda _plan: True)


def test_what_is_no_commit_is_named_also_where_only_a_compaction_log_has_it(tmp_path: Path) -> None:
    topic = "j-commitTopic"
    with opened(tmp_path, how=compacting(retention_size=0, segment_size=500)) as store:
        store.compact_topic(topic).result()
        put(store, "k", b"hello", topic=topic)
        for number in range(20):
            put(store, f"{number}", b"x" * 100, topic="other")
        store.compact(force=True)
        store.expire()
    assert b"hello" not in log_bytes(tmp_path)
    (remark,) = [each for each in examine_store(tmp_path).findings if "commit" in each.text]
    assert (remark.severity, remark.path.suffix) == ("remark", ".data")
    assert "a record is no commit: topic 'j-commitTopic', queue 0, offset 0" in remark.text


def place_of(files: list[Path], body: bytes) -> tuple[Path, int]:
    """Where the entry of a message begins."""
    file = next(file for file in files if body in file.read_bytes())
    content = file.read_bytes()
    return file, content.rindex(MAGIC, 0, content.index(body))
