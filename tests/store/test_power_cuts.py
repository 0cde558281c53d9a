"""Power cuts: what was not synced may be on disk, or not, or in part, in any order."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.errors import StoreFailedError
from headrace.store import MessageStore, StageKey, StoreSettings
from tests.store.power import CutDuringSync, Disk
from tests.store.samples import append_of, bodies, chunk_of, contents, section_of, settings

SMALL = settings(
    segment_size=3000, index_file_units=8, checkpoint_interval=timedelta(milliseconds=1)
)
#: The same with every unit beside the log.
BESIDE = replace(SMALL, large_unit=1)


def _write(store: MessageStore, number: int, chance: random.Random) -> list[int]:
    """Write a group of messages or a unit; the numbers that are acknowledged then."""
    if chance.random() < 0.4:
        key = StageKey("job", 1, number, 0, 0, 0)
        body = b"%d" % number + b"." * chance.randint(0, 900)
        store.stage(key, 0, chunk_of(*(section_of("counts", q, [body] * 2) for q in range(3))))
        store.commit_unit([key]).result()
        store.drop_staged("job", lambda _: False)
        return []
    futures = [
        store.append([append_of("lines", 0, [b"%d" % n + b"." * chance.randint(0, 400)])])
        for n in range(number, number + chance.randint(1, 4))
    ]
    return [number + n for n, future in enumerate(futures) if future.result()]


def _check(path: Path, acknowledged: list[int], all_lines: list[int], units: int) -> None:
    with MessageStore.open(path, SMALL) as store:
        lines = [int(body.rstrip(b".")) for body in bodies(store, "lines", 0)]
        assert lines[: len(acknowledged)] == acknowledged
        assert lines == all_lines[: len(lines)]
        counts = [bodies(store, "counts", queue) for queue in range(3)]
        assert counts[0] == counts[1] == counts[2]
        assert len(counts[0]) >= 2 * units
        store.append([append_of("lines", 0, [b"0"])]).result()
        held = bodies(store, "lines", 0)
    with MessageStore.open(path, SMALL) as store:
        assert bodies(store, "lines", 0) == held


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("config", [SMALL, BESIDE], ids=["within", "beside"])
def test_t08_after_a_power_cut_all_that_was_acknowledged_is_there(
    tmp_path: Path, config: StoreSettings, seed: int
) -> None:
    chance = random.Random(seed)
    root, target = tmp_path / "live", tmp_path / "found"
    disk = CutDuringSync(root, target, chance.randint(3, 60), chance)
    acknowledged: list[int] = []
    lines: list[int] = []
    units = units_before = 0
    with MessageStore.open(root, config, ops=disk) as store:
        number = 1
        while disk.left > 0:
            done = _write(store, number, chance)
            if disk.left > 0:
                acknowledged += done
                units_before += not done
            lines += done
            units += not done
            number += 10
    _check(target, acknowledged, lines, units_before)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_a_failed_sync_left_in_memory_is_on_disk_before_a_restart_shows_it(
    tmp_path: Path, flush: str
) -> None:
    root, target, disk = tmp_path / "live", tmp_path / "found", Disk()
    config = settings(flush=flush, segment_size=3000)
    with MessageStore.open(root, config, ops=disk) as store:
        for number in range(8):
            store.append([append_of("lines", 0, [b"%d" % number * 500])]).result()
        disk.fails = True
        store.stage(StageKey("job", 1, 1, 0, 0, 0), 0, chunk_of(section_of("counts", 0, [b"x"])))
        with pytest.raises(StoreFailedError):
            store.commit_unit([StageKey("job", 1, 1, 0, 0, 0)]).result()
    with pytest.raises(StoreFailedError, match="could not sync"):
        MessageStore.open(root, config, ops=disk)
    disk.fails = False
    with MessageStore.open(root, config, ops=disk) as store:
        seen = contents(store)
        disk.cut_power(root, target, random.Random(1))
    assert ("counts", 0) in seen
    with MessageStore.open(target, config) as store:
        assert contents(store) == seen
