from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect import SourceBatch
from headrace.connect.connectors.file import FileSourceConnector
from headrace.connect.schema import STRING
from headrace.errors import ConnectorConfigError
from tests.connect.connectors.runs import configured, problems, source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in.txt"


def texts(path: Path | str, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "file": str(path),
        "topic": "lines",
        "rotate.wait.ms": "0",
        "discovery.interval.ms": "0",
        **given,
    }


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_become_records(path: Path) -> None:
    append(path, "one\ntwo\n")
    with source(FileSourceConnector, texts(path)) as run:
        first, second = run.poll()
        assert (first.topic, first.value, first.key) == ("lines", "one", None)
        assert first.value_schema == STRING
        assert second.partition == {"filename": str(path)}
        assert second.offset["position"] == 8


@pytest.mark.requirement(21)
def test_restart_goes_on_after_what_was_committed(path: Path) -> None:
    append(path, "one\n")
    with source(FileSourceConnector, texts(path)) as run:
        assert run.values() == ["one"]
        append(path, "two\n")
        assert [record.value for record in run.poll()] == ["two"]
        run.kill()  # before the commit
        assert run.values() == ["two"]
        run.kill()
        assert run.values() == []


def test_files_that_match_come_and_are_shared_by_name(tmp_path: Path) -> None:
    for number in range(8):
        append(tmp_path / f"{number}.log", f"from {number}\n")
    (tmp_path / "folder.log").mkdir()
    with source(FileSourceConnector, texts(tmp_path / "*.log", key="file"), tasks=3) as run:
        found = run.poll()
        assert sorted(record.value for record in found) == [f"from {n}" for n in range(8)]
        assert {record.key for record in found} == {str(p) for p in tmp_path.glob("?.log")}
        run.commit()
        append(tmp_path / "late.log", "late\n")
        assert run.values() == ["late"]


def test_rotated_files_that_match_are_no_files_of_their_own(tmp_path: Path) -> None:
    live = tmp_path / "app.log"
    append(live.with_name("app.log.1"), "one\n")
    append(live, "two\n")
    with source(FileSourceConnector, texts(tmp_path / "app.log*")) as run:
        assert run.values() == ["one", "two"]
        live.with_name("app.log.1").rename(live.with_name("app.log.2"))
        live.rename(live.with_name("app.log.1"))
        append(live, "three\n")
        run.kill()
        assert run.values() == ["three"]


@pytest.mark.parametrize("killed", [False, True])
def test_positions_of_files_that_are_gone_are_forgotten(tmp_path: Path, killed: bool) -> None:
    names = [tmp_path / name for name in ("a.log", "b.log", "c.log")]
    config = texts(f"{tmp_path}/*.log,{tmp_path / 'a.log'}", forget_after_ms="0")
    with source(FileSourceConnector, config) as run:
        for name in names:
            append(name, f"{name.name}\n")
        assert sorted(run.values()) == ["a.log", "b.log", "c.log"]
        for name in names:
            os.utime(name, (1, 1))
        names[0].unlink()  # a name that the config has
        names[1].rename(tmp_path / "b.log.1")  # rotated: it may be read on
        names[2].unlink()
        if killed:
            run.kill()
        assert run.values() == []
        assert run.values() == []
        left = {Path(partition["filename"]).name for partition, _ in run.committed.all()}
        assert left == {"a.log", "b.log"}
        append(names[2], "c.log\nmore\n")
        assert run.values() == ["c.log", "more"]


def test_a_file_that_is_missing_for_a_moment_goes_on(tmp_path: Path) -> None:
    with source(FileSourceConnector, texts(tmp_path / "*.log")) as run:
        append(tmp_path / "a.log", "1\n")
        assert run.values() == ["1"]
        (tmp_path / "a.log").rename(tmp_path / "elsewhere")
        run.kill()
        assert run.values() == []
        (tmp_path / "elsewhere").rename(tmp_path / "a.log")
        append(tmp_path / "a.log", "2\n")
        assert run.values() == ["2"]


def test_latest_skips_what_is_there_but_not_what_comes(tmp_path: Path) -> None:
    append(tmp_path / "old.log", "old\n")
    with source(FileSourceConnector, texts(tmp_path / "*.log", start="latest")) as run:
        assert run.values() == []
        append(tmp_path / "old.log", "more\n")
        append(tmp_path / "new.log", "new\n")
        assert sorted(run.values()) == ["more", "new"]


def test_rows_of_a_poll_are_bounded(path: Path) -> None:
    append(path, "x\n" * 10)
    with source(FileSourceConnector, texts(path, batch_size="4")) as run:
        assert [len(run.poll(rounds=1)) for _ in range(4)] == [4, 4, 2, 0]


def test_more_files_than_may_be_open_are_followed(tmp_path: Path) -> None:
    before = open_files()
    with source(FileSourceConnector, texts(tmp_path / "*", files_open_max="2")) as run:
        for number in range(10):
            append(tmp_path / f"{number}", "a\n")
        assert len(run.values(rounds=12)) == 10
        assert open_files() - before <= 2
        for number in range(10):
            append(tmp_path / f"{number}", "b\n")
        assert run.values(rounds=12) == ["b"] * 10


def test_one_file_has_one_task(path: Path) -> None:
    connector = configured(FileSourceConnector, texts(path))
    assert len(connector.task_configs(5)) == 1
    connector = configured(FileSourceConnector, texts(f"{path},{path}2"))
    assert len(connector.task_configs(5)) == 2
    connector = configured(FileSourceConnector, texts(f"{path}*"))
    assert len(connector.task_configs(5)) == 5


def test_position_set_by_hand_is_checked(path: Path) -> None:
    connector = configured(FileSourceConnector, texts(path))
    config = connector.context.config
    partition = {"filename": str(path)}
    assert connector.alter_offsets(config, [(partition, {"position": 2}), (partition, None)])
    with pytest.raises(ValueError, match="position -1; it must be bytes"):
        connector.alter_offsets(config, [(partition, {"position": -1})])
    with pytest.raises(ConnectorConfigError, match="names no file"):
        connector.alter_offsets(config, [({"name": "x"}, None)])


def test_config_that_cannot_be_is_named(path: Path) -> None:
    assert "The key topic is missing" in problems(FileSourceConnector, {"file": "a"})[0]
    found = problems(FileSourceConnector, texts(path, encoding="utf-9"))
    assert found[0].startswith("There is no encoding 'utf-9'.")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["write", "poll", "commit", "kill"]), max_size=25))
def test_committed_records_are_the_lines_each_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path = tmp_path_factory.mktemp("source") / "in.txt"
    wrote = 0
    with source(FileSourceConnector, texts(path, batch_max_rows="2")) as run:
        for step in [*steps, "commit"]:
            if step == "write":
                append(path, f"{wrote}\n{wrote + 1}\n{wrote + 2}\n")
                wrote += 3
            elif step == "poll":
                run.poll(rounds=2)
            elif step == "commit":
                run.commit()
            else:
                run.kill()
        run.values(rounds=wrote + 4)
        assert [record.value for record in run.records] == [str(n) for n in range(wrote)]


def test_a_million_lines_a_second_are_columns(path: Path) -> None:
    path.write_bytes((b"x" * 99 + b"\n") * 300_000)
    with source(FileSourceConnector, texts(path)) as run:
        task = run.tasks[0]
        rows = 0
        begun = time.process_time()
        while rows < 300_000:
            batch = task.poll()
            assert isinstance(batch, SourceBatch)
            rows += len(batch)
        # A tenth of what is measured on a quiet machine: see docs/guides/connect/connectors.md.
        assert rows / (time.process_time() - begun) > 300_000
