from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect.connectors.storage import FilesSourceConnector
from headrace.errors import ConnectorConfigError, DeserializationError
from tests.connect.connectors.runs import SourceRun, problems, source

ROWS = [{"id": number, "name": f"n{number}"} for number in range(25)]


def texts(folder: Path, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    fixed = {"uri": str(folder), "topic": "rows", "settle.ms": "0", "scan.interval.ms": "0"}
    return {**fixed, "batch.max.rows": "10", **given}


def write_csv(path: Path) -> None:
    lines = [f"{row['id']},{row['name']}\n" for row in ROWS]
    path.write_text("id,name\n" + "".join(lines))


def write_jsonl(path: Path) -> None:
    path.write_text("".join(f'{{"id": {row["id"]}, "name": "{row["name"]}"}}\n' for row in ROWS))


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.csv": write_csv,
    "a.jsonl": write_jsonl,
    "a.parquet": write_parquet,
}
formats = pytest.mark.parametrize("name", sorted(WRITERS))


@formats
def test_rows_become_records(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        records = run.poll()
    assert [record.value for record in records] == ROWS
    assert records[-1].partition == {"file": name}
    assert records[-1].offset["row"] == 25
    assert records[-1].offset["done"] is True


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_columns_give_rows_a_schema(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        assert str(run.poll()[0].value_schema) == "struct {id: int64?, name: string?}"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_compressed_files_are_read_as_what_they_hold(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
        file.write((tmp_path / name).read_bytes())
    (tmp_path / name).unlink()
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        assert run.values(rounds=1) == ROWS[:10]
        run.kill()
        assert run.values() == ROWS[10:]


@formats
@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_restart_goes_on_at_the_row(tmp_path: Path, name: str, rounds: int) -> None:
    WRITERS[name](tmp_path / name)
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        found = run.values(rounds=rounds)
        run.poll(rounds=1)
        run.kill()
        found += run.values()
        run.kill()
        assert run.values() == []
    assert found == ROWS


@pytest.mark.parametrize("action", ["move", "delete"])
@pytest.mark.parametrize("killed", [False, True])
def test_file_leaves_once_it_is_committed(tmp_path: Path, action: str, killed: bool) -> None:
    folder, done = tmp_path / "in", tmp_path / "done"
    (folder / "sub").mkdir(parents=True)
    write_csv(folder / "sub" / "a.csv")
    config = texts(folder, files="**/*", when_done=action, done_uri=str(done))
    with source(FilesSourceConnector, config) as run:
        run.poll()
        assert (folder / "sub" / "a.csv").exists()
        if killed:
            run.commit_positions(run._positions)  # the end comes between the commit and its news
            run.kill()
            assert run.poll() == []
            assert run.poll() == []
        else:
            run.commit()
        assert not (folder / "sub" / "a.csv").exists()
        assert (done / "sub" / "a.csv").exists() == (action == "move")


@pytest.mark.parametrize("action", ["keep", "move", "delete"])
def test_positions_of_files_that_are_gone_are_forgotten(tmp_path: Path, action: str) -> None:
    folder, done = tmp_path / "in", tmp_path / "done"
    folder.mkdir()
    config = texts(folder, when_done=action, done_uri=str(done), forget_after_ms="0")
    with source(FilesSourceConnector, config) as run:
        for number in range(5):
            (folder / f"{number}.jsonl").write_text(f"{number}\n")
        assert run.values() == list(range(5))
        if action == "keep":
            assert len(run.committed.all()) == 5
            (folder / "3.jsonl").unlink()
            run.kill()
            assert run.values() == []
            assert len(run.committed.all()) == 4
        else:
            run.values()
            assert run.committed.all() == []
        (folder / "3.jsonl").write_text("33\n")
        assert run.values() == [33]


def test_file_that_is_missing_for_a_moment_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1\n")
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        assert run.values() == [1]
        path.rename(tmp_path / ".a")
        run.kill()
        assert run.values() == []
        (tmp_path / ".a").rename(path)
        assert run.values() == []


def test_new_file_of_an_old_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with source(FilesSourceConnector, texts(tmp_path, when_done="delete")) as run:
        path.write_text("1\n")
        assert run.values() == [1]
        path.write_text("2\n")
        assert run.values() == [2]


def test_lines_that_were_appended_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n")
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        assert run.values() == [1, 2]
        with path.open("a") as file:
            file.write("3\n")
        assert run.values() == [3]
        os.utime(path, (0, 0))
        assert run.values() == [1, 2, 3]  # as large as before, written anew: another file


def test_unfinished_files_wait(tmp_path: Path) -> None:
    for name in (".a.jsonl", "_a.jsonl", "a.jsonl.tmp", "b.jsonl"):
        (tmp_path / name).write_text("1\n")
    with source(FilesSourceConnector, texts(tmp_path, settle_ms="60000")) as run:
        assert run.values() == []
        os.utime(tmp_path / "b.jsonl", (0, 0))
        assert run.values() == [1]


def test_empty_files_leave_at_once(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl"):
        (tmp_path / name).touch()
    with source(FilesSourceConnector, texts(tmp_path, when_done="delete")) as run:
        assert run.values() == []
    assert list(tmp_path.iterdir()) == []


def test_whole_files_are_records(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00\x01")
    with source(FilesSourceConnector, texts(tmp_path, format="whole")) as run:
        assert run.values() == [b"\x00\x01"]


def test_tasks_share_files(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
    with source(FilesSourceConnector, texts(tmp_path), tasks=3) as run:
        assert sorted(run.values()) == list(range(9))


def csv_values(folder: Path, content: str, **more: str) -> list[Any]:
    (folder / "a.csv").write_text(content)
    with source(FilesSourceConnector, texts(folder, **more)) as run:
        return run.values()


def test_csv_is_read_as_configured(tmp_path: Path) -> None:
    assert csv_values(tmp_path, 'a,b\n1,"x\ny"\n') == [{"a": 1, "b": "x\ny"}]
    text = csv_values(tmp_path, "a;b\n01;\n", csv_delimiter=";", csv_types="text")
    assert text == [{"a": "01", "b": ""}]
    assert csv_values(tmp_path, "1\t2\n", csv_delimiter=r"\t", csv_header="false") == [
        {"f0": 1, "f1": 2}
    ]
    assert csv_values(tmp_path, "a,b\n1,2\n", csv_columns="x,y") == [{"x": 1, "y": 2}]


def test_column_that_begins_empty_is_text(tmp_path: Path) -> None:
    rows = "1,\n" * 300_000  # more than the megabyte by which types are inferred
    found = csv_values(tmp_path, f"a,b\n{rows}2,x\n", batch_max_rows="1000000")
    assert found[0] == {"a": 1, "b": None}
    assert found[-1] == {"a": 2, "b": "x"}


def test_whole_numbers_stay_whole_however_long(tmp_path: Path) -> None:
    long = (1 << 64) + 1
    (tmp_path / "a.jsonl").write_text(f'{long}\n{{"a": -{long}}}\n')
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        assert run.values() == [long, {"a": -long}]


@pytest.mark.parametrize("bad", ["{", "[" * 5000])
def test_bad_file_is_named_or_passed_over(tmp_path: Path, bad: str) -> None:
    (tmp_path / "bad.jsonl").write_text(f"1\n{bad}\n")
    (tmp_path / "good.jsonl").write_text("2\n")
    run = SourceRun(FilesSourceConnector, texts(tmp_path, batch_max_rows="1"))
    with pytest.raises(DeserializationError, match=r"bad\.jsonl cannot be read behind row 1"):
        run.poll()
    with source(FilesSourceConnector, texts(tmp_path, bad_files="skip")) as skipping:
        assert skipping.values() == [2]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.parquet"])
def test_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8bnonsense")
    run = SourceRun(FilesSourceConnector, texts(tmp_path))
    with pytest.raises(DeserializationError, match=rf"{name} cannot be read behind row 0"):
        run.poll()


def test_ending_that_says_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("x")
    run = SourceRun(FilesSourceConnector, texts(tmp_path))
    with pytest.raises(DeserializationError, match=r"ending of .*a\.dat says nothing"):
        run.poll()


def test_config_that_cannot_be_is_named(tmp_path: Path) -> None:
    moved = texts(tmp_path, when_done="move")
    assert problems(FilesSourceConnector, moved) == ["when.done=move needs done.uri."]
    within = {**moved, "done.uri": str(tmp_path / "done")}
    assert "found again" in problems(FilesSourceConnector, within)[0]
    long = texts(tmp_path, csv_delimiter="::")
    assert "one character" in problems(FilesSourceConnector, long)[0]
    for name, value, problem in (
        ("endpoint", "http://127.0.0.1:1", "no key endpoint for a folder: .* s3://bucket/prefix"),
        ("prefixes", "a", "no key prefixes for a folder"),
        ("done.uri", "s3://b/done", "done.uri must be a folder"),
        ("uri", "gs://bucket", "it must be a path, file:///folder or s3://bucket/prefix"),
    ):
        (found,) = problems(FilesSourceConnector, {**texts(tmp_path), name: value})
        assert re.search(problem, found)
    with pytest.raises(ConnectorConfigError, match="/no/such does not exist"):
        SourceRun(FilesSourceConnector, texts(Path("/no/such")))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["file", "poll", "commit", "kill"]), max_size=20))
def test_every_row_is_committed_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    config = texts(folder, when_done="delete", batch_max_rows="2")
    files = 0
    with source(FilesSourceConnector, config) as run:
        for step in [*steps, "file", "commit"]:
            if step == "file":
                (folder / f"{files}.jsonl").write_text(
                    "".join(f'"{files}/{row}"\n' for row in range(3))
                )
                files += 1
            elif step == "poll":
                run.poll(rounds=1)
            elif step == "commit":
                run.commit()
            else:
                run.kill()
        run.values(rounds=4 * files + 2)
        run.poll(rounds=1)
    rows = sorted(record.value for record in run.records)
    assert rows == sorted(f"{file}/{row}" for file in range(files) for row in range(3))
    assert list(folder.iterdir()) == []
