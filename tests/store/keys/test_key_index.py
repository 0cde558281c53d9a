"""Messages by key: what a query finds, and what becomes of files that are lost or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.protocol.messages import decode_messages
from headrace.protocol.properties import encode_properties
from headrace.protocol.records import encode_records
from headrace.store import MessageStore, QueueAppend, StoreSettings
from headrace.store.keys import KeyQuery
from headrace.store.keys.finding import topic_hash, word_hashes

LONG = timedelta(hours=1)
SMALL = StoreSettings(segment_size=4096, flush="async", maintenance_interval=LONG)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path, SMALL, clock=clock) as opened:
        yield opened


def put(
    store: MessageStore,
    body: bytes,
    keys: str = "",
    uniq: str = "",
    *,
    topic: str = "t",
    queue: int = 0,
) -> None:
    given = {name: value for name, value in (("KEYS", keys), ("UNIQ_KEY", uniq)) if value}
    records = encode_records(topic, queue, [body], encode_properties(given))
    store.append([QueueAppend(topic, queue, records)]).result()


def found(store: MessageStore, word: str, **more: object) -> list[bytes]:
    query = KeyQuery(**{"topic": "t", "word": word, **more})  # type: ignore[arg-type]
    return [message.body for each in store.keys.find(query) for message in decode_messages(each)]


def fill(store: MessageStore, count: int) -> None:
    """Write messages until many segments are full; each has a key of its own and one of ten."""
    for number in range(count):
        put(
            store,
            b"%d" % number,
            f"own-{number} shared-{number % 10}",
            f"ID{number}",
            queue=number % 3,
        )


def sidecars(folder: Path) -> list[Path]:
    return sorted((folder / "keys").glob("*.keys"))


def test_every_word_and_the_unique_id_lead_to_a_message(store: MessageStore) -> None:
    put(store, b"a", "k1 k2  k3", "ID1")
    put(store, b"b", "k2", "ID2")
    put(store, b"c", "", "ID3")
    assert found(store, "k1") == found(store, "k3") == [b"a"]
    assert found(store, "k2") == [b"b", b"a"]
    assert found(store, "ID3") == found(store, "ID3", unique=True) == [b"c"]
    assert found(store, "k2", unique=True) == []
    assert found(store, "k") == found(store, "") == found(store, "k1 k2") == []
    assert found(store, "k1", topic="u") == []


def test_old_segments_answer_as_the_newest_does(store: MessageStore) -> None:
    fill(store, 300)
    assert store.statistics().segments > 10
    for number in range(0, 300, 7):
        assert found(store, f"own-{number}") == [b"%d" % number]
    assert found(store, "shared-3", limit=4) == [b"293", b"283", b"273", b"263"]
    assert len(found(store, "shared-3", limit=1000)) == 30
    put(store, b"new", "own-5")
    assert found(store, "own-5") == [b"new", b"5"]


@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [(0, 10_000, 30), (1050, 10_000, 25), (0, 1049, 5), (1050, 1059, 1), (2000, 3000, 0)],
)
def test_only_the_time_asked_for_counts(
    store: MessageStore, clock: Clock, begin: int, end: int, wanted: int
) -> None:
    for number in range(300):
        clock.now = 1000 + number
        put(store, b"%d" % number, f"shared-{number % 10}")
    assert len(found(store, "shared-3", begin=begin, end=end, limit=1000)) == wanted


def test_messages_of_a_deleted_topic_are_gone(store: MessageStore) -> None:
    fill(store, 60)
    store.delete_topic("t").result()
    assert found(store, "own-3") == []
    put(store, b"again", "own-3")
    assert found(store, "own-3") == [b"again"]


def test_sidecars_are_made_in_the_background_and_go_with_their_segments(
    tmp_path: Path, clock: Clock
) -> None:
    kept = StoreSettings(segment_size=4096, flush="async", retention_size=9000)
    with MessageStore.open(tmp_path, kept, clock=clock) as store:
        fill(store, 200)
        store.keys.keep_up()
        assert len(sidecars(tmp_path)) == store.statistics().segments - 1
        store.expire()
        store.keys.keep_up()
        assert len(sidecars(tmp_path)) == store.statistics().segments - 1 < 4
        assert found(store, "own-1") == []
        assert found(store, "own-199") == [b"199"]


@pytest.mark.parametrize(
    "damage", ["lost", "torn", "flipped block", "flipped end", "other", "empty"]
)
def test_a_wrong_sidecar_is_made_anew(tmp_path: Path, clock: Clock, damage: str) -> None:
    with MessageStore.open(tmp_path, SMALL, clock=clock) as store:
        fill(store, 80)
        store.keys.keep_up()
    files = sidecars(tmp_path)
    good = [path.read_bytes() for path in files]
    for number, path in enumerate(files):
        content = bytearray(good[number])
        if damage == "lost":
            path.unlink()
            continue
        if damage == "torn":
            del content[len(content) // 2 :]
        elif damage == "empty":
            content.clear()
        elif damage == "other":
            content = bytearray(good[number - 1])
        else:
            content[0 if damage == "flipped block" else -9] ^= 1
        path.write_bytes(content)
    with MessageStore.open(tmp_path, SMALL, clock=clock) as store:
        for number in range(80):
            assert found(store, f"own-{number}") == [b"%d" % number]
    assert [path.read_bytes() for path in files] == good


def test_a_segment_with_other_bytes_is_collected_again(tmp_path: Path, clock: Clock) -> None:
    with MessageStore.open(tmp_path, SMALL, clock=clock) as store:
        fill(store, 40)
        assert found(store, "own-7") == [b"7"]
        (first, *_) = sorted((tmp_path / "log").glob("*.log"))
        with first.open("r+b") as file:
            file.seek(first.stat().st_size - 1)
            file.write(b"\xff")
        assert found(store, "own-1") == [b"1"]


def test_messages_that_are_not_committed_yet_are_not_found(store: MessageStore) -> None:
    put(store, b"a", "k")
    records = [
        encode_records("t", 1, [b"%d" % n], encode_properties({"KEYS": "k"})) for n in range(3)
    ]
    unit = store.commit_unit([], [QueueAppend("t", 1, each) for each in records])
    unit.result()
    assert sorted(found(store, "k")) == [b"0", b"1", b"2", b"a"]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.binary(max_size=8))
def test_a_hash_depends_on_the_word_and_its_topic_alone(words: list[bytes], topic: bytes) -> None:
    together = word_hashes(pa.array(words, pa.binary()), np.full(len(words), topic_hash(topic)))
    alone = [
        word_hashes(pa.array([word], pa.binary()), np.array([topic_hash(topic)]))[0]
        for word in words
    ]
    assert together.tolist() == [int(each) for each in alone]
    assert len(set(together.tolist())) == len(set(words))


def test_hashes_stay_as_they_are_on_disk() -> None:
    words = pa.array([b"", b"k", b"key-1", b"\x00"], pa.binary())
    hashes = word_hashes(words, np.full(4, topic_hash(b"lines")))
    assert hashes.tolist() == KNOWN


KNOWN = [5633399399365724628, 2094556216248215872, 10779167459939413055, 7596483584086479800]


def test_a_compacted_topic_answers_when_the_log_has_forgotten(tmp_path: Path, clock: Clock) -> None:
    kept = StoreSettings(
        segment_size=4096, flush="async", retention_size=9000, maintenance_interval=LONG
    )
    with MessageStore.open(tmp_path, kept, clock=clock) as store:
        store.compact_topic("t").result()
        for number in range(200):
            clock.now = 1000 + number
            put(store, b"%d" % number, f"own-{number} both", f"ID{number}", queue=number % 2)
        store.expire()
        assert store.statistics().begin > 0
        assert found(store, "own-7") == found(store, "ID7", unique=True) == [b"7"]
        assert found(store, "own-7", unique=True) == []
        assert found(store, "own-7", begin=1008) == found(store, "own-7", end=1006) == []
        newest = [b"%d" % number for number in range(199, -1, -1)]
        assert found(store, "both", limit=300) == newest
        assert found(store, "both", limit=150, end=1150) == newest[49:199]
