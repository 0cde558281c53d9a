"""``headrace store``: what it says of a damaged store, and what it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.store import MessageStore
from tests.store.samples import append_of, bodies, log_files, settings

Captured = pytest.CaptureFixture[str]


def run(*arguments: str, status: int = 0) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert (stopped.value.code or 0) == status


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose broker has ten messages."""
    with MessageStore.open(tmp_path / "broker" / "store", settings()) as store:
        for number in range(10):
            store.append([append_of("lines", 0, [b"%d" % number])]).result()
    return tmp_path


def flip(data: Path, at: int) -> Path:
    [file] = log_files(data / "broker" / "store")
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(bytes(content))
    return file


def entry_size(data: Path) -> int:
    return len(log_files(data / "broker" / "store")[0].read_bytes()) // 10


@pytest.mark.parametrize("place", ["", "broker", "broker/store"])
@pytest.mark.parametrize("more", [(), ("--deep",)])
def test_a_good_store_is_said_to_be_good(
    data: Path, place: str, more: tuple[str, ...], capsys: Captured
) -> None:
    run("store", "verify", str(data / place), *more)
    err = capsys.readouterr().err
    assert "10 entries with 10 records of 1 queues" in err
    assert err.endswith("Nothing is damaged.\n")


def test_damage_is_told_by_file_byte_position_queue_and_offset(
    data: Path, capsys: Captured
) -> None:
    size = entry_size(data)
    file = flip(data, 3 * size + 100)
    run("store", "verify", str(data), status=1)
    out = capsys.readouterr().out
    assert f"{file}, byte {3 * size} (position {3 * size} of the log): {size} bytes do not" in out
    assert "lost: topic 'lines', queue 0, offset 3" in out


def test_json_holds_the_same(data: Path, capsys: Captured) -> None:
    size = entry_size(data)
    file = flip(data, 3 * size + 100)
    run("store", "verify", str(data), "--json", status=1)
    found = json.loads(capsys.readouterr().out)
    assert found["damaged"] is True
    assert (found["entries"], found["records"], found["open_in_process"]) == (9, 9, None)
    [finding] = found["findings"]
    assert (finding["file"], finding["offset"], finding["size"]) == (str(file), 3 * size, size)
    assert finding["lost"] == [{"topic": "lines", "queue": 0, "first_offset": 3, "last_offset": 3}]


def test_a_repair_asks_and_says_what_is_lost_and_where_the_old_files_are(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    file = flip(data, 3 * entry_size(data) + 100)
    before = file.read_bytes()
    monkeypatch.setattr("typer.confirm", lambda *_args, **_more: False)
    run("store", "repair", str(data), status=1)
    assert file.read_bytes() == before
    assert "Nothing was changed." in capsys.readouterr().err
    run("store", "repair", str(data), "--yes")
    told = capsys.readouterr().err
    assert "Lost already: topic 'lines', queue 0, offset 3." in told
    kept = data / "broker" / "store" / "damaged" / "0001"
    assert f"The old files are in {kept}." in told
    assert (kept / "log" / file.name).read_bytes() == before
    run("store", "verify", str(data))
    run("store", "repair", str(data))
    assert capsys.readouterr().err.endswith("Nothing is damaged, and nothing was changed.\n")
    with MessageStore.open(data / "broker" / "store", settings()) as store:
        result = store.read("lines", 0, 3)
        assert (result.count, result.next_offset) == (6, 10)


def test_a_folder_without_a_store_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    run("store", "verify", str(tmp_path), status=1)
    assert "holds no store" in capsys.readouterr().err


def test_an_open_store_is_verified_and_the_process_named(data: Path, capsys: Captured) -> None:
    with MessageStore.open(data / "broker" / "store", settings()) as store:
        run("store", "verify", str(data))
        assert "The store is open in process" in capsys.readouterr().err
        run("store", "repair", str(data), "--yes", status=1)
        assert len(bodies(store, "lines", 0)) == 10
