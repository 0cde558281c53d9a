from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect.connectors.storage import FilesSinkConnector
from headrace.connect.connectors.storage.places import DiskFolder
from headrace.errors import ConnectorConfigError, SerializationError
from tests.connect.connectors.runs import QUEUE, SinkRun, configured, sink


def texts(folder: Path, **more: str) -> dict[str, str]:
    return {"uri": str(folder), **more}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("**/lines+*") if path.parent.name != "_headrace")


def rows(folder: Path) -> list[Any]:
    return [orjson.loads(line) for path in files(folder) for line in path.read_bytes().splitlines()]


def test_batch_becomes_one_file_per_queue(tmp_path: Path) -> None:
    other = QUEUE._replace(queue_id=1)
    with sink(FilesSinkConnector, texts(tmp_path), queues=[QUEUE, other]) as run:
        run.put([{"a": 1}, {"a": 2}])
        run.put([{"a": 3}], other)
        run.put_columns(pa.array([{"a": 4}]))
        run.commit()
    names = [path.relative_to(tmp_path).as_posix() for path in files(tmp_path)]
    assert names == [
        f"lines/lines+broker-a+0+{0:019d}.parquet",
        f"lines/lines+broker-a+1+{0:019d}.parquet",
    ]
    assert pq.read_table(tmp_path / names[0]).to_pylist() == [{"a": 1}, {"a": 2}, {"a": 4}]


def test_values_without_fields_are_a_column(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="csv", folders="false")) as run:
        run.put(["x", "y"])
        run.commit()
    assert files(tmp_path)[0].parent == tmp_path
    assert files(tmp_path)[0].read_text() == '"value"\n"x"\n"y"\n'


def test_lines_of_json_need_no_common_shape(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="jsonl")) as run:
        run.put([{"a": 1}, [Decimal("1.5")], None])
        run.put_columns(pa.array([{"b": "x"}]))
        run.commit()
    assert rows(tmp_path) == [{"a": 1}, ["1.5"], None, {"b": "x"}]


def test_values_of_no_common_shape_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path)) as run:
        with pytest.raises(SerializationError, match="fit into no column together") as caught:
            run.put([{"a": 1}, {"a": "x"}])
        assert "jsonl" in str(caught.value)


def test_records_that_were_refused_together_are_taken_when_they_come_in_parts(
    tmp_path: Path,
) -> None:
    with sink(FilesSinkConnector, texts(tmp_path)) as run:
        with pytest.raises(SerializationError):
            run.put([{"a": 1}, {"a": "x"}])
        run.put([{"a": 1}])  # errors.put.tolerance=all halves the batch
        run.commit()
    assert pq.read_table(files(tmp_path)[0]).to_pylist() == [{"a": 1}]


def test_nested_values_are_refused_by_csv(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="csv")) as run:
        run.put([{"a": [1]}])
        with pytest.raises(SerializationError, match="cannot be written as csv"):
            run.flush()


def test_batch_of_a_folder_is_cut_by_fields_and_rows(tmp_path: Path) -> None:
    by = {"partition.by": "field", "partition.fields": "land", "file.max.rows": "1"}
    config = texts(tmp_path, uri=tmp_path.as_uri(), format="csv", compression="gzip", **by)
    with sink(FilesSinkConnector, config) as run:
        run.put([{"land": "de"}, {"land": "fr"}, {"land": "de"}])
        run.flush()  # and the end comes before the runtime's own commit
        run.kill()
        assert run.next == {QUEUE: 3}
    assert [path.relative_to(tmp_path / "lines").as_posix() for path in files(tmp_path)] == [
        f"land={land}/lines+broker-a+0+{first:019d}.csv.gz"
        for land, first in (("de", 0), ("de", 2), ("fr", 0))
    ]


@pytest.mark.requirement(45)
def test_files_are_the_offsets(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="jsonl")) as run:
        run.put([1, 2])
        run.flush()  # and the end comes before the runtime's own commit
        run.kill()
        assert run.next == {QUEUE: 2}


def test_files_that_were_taken_away_are_not_written_again(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="jsonl")) as run:
        run.put([1, 2])
        run.commit()
        files(tmp_path)[0].unlink()
        run.kill()
        assert run.next == {QUEUE: 2}


def test_half_a_file_is_removed(tmp_path: Path) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="jsonl")) as run:
        run.put([1])
        run.commit()
        half = files(tmp_path)[0].with_name(f".lines+broker-a+0+{1:019d}.jsonl.tmp")
        half.touch()
        other = half.with_name(half.name.replace("+0+", "+7+"))
        other.touch()
        run.kill()
    assert not half.exists()
    assert other.exists()


def test_files_of_a_batch_are_shown_behind_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sink(FilesSinkConnector, texts(tmp_path, format="jsonl")) as run:
        run.put([1, 2])
        with monkeypatch.context() as patch:
            patch.setattr(DiskFolder, "publish", lambda *_: None)  # the end comes before it
            run.flush()
        assert files(tmp_path) == []
        run.kill()
        assert run.next == {QUEUE: 2}
    assert rows(tmp_path) == [1, 2]


def test_missing_folder_fails_the_task(tmp_path: Path) -> None:
    with pytest.raises(ConnectorConfigError, match="none does not exist"):
        SinkRun(FilesSinkConnector, texts(tmp_path / "none"))


def test_offsets_can_be_set_further_on_but_not_back(tmp_path: Path) -> None:
    config = texts(tmp_path, format="jsonl")
    where = {
        "rocketmq_topic": QUEUE.topic,
        "rocketmq_broker": QUEUE.broker,
        "rocketmq_queue_id": QUEUE.queue_id,
    }
    connector = configured(FilesSinkConnector, config)
    parsed = connector.context.config
    assert connector.alter_offsets(parsed, [(where, {"rocketmq_queue_offset": 5})])
    with sink(FilesSinkConnector, config) as run:
        assert run.next == {QUEUE: 5}
    with pytest.raises(ConnectorConfigError, match="up to offset 5; it cannot go back"):
        connector.alter_offsets(parsed, [(where, {"rocketmq_queue_offset": 4})])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["put", "flush", "commit", "kill"]), max_size=20))
def test_every_record_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("sink")
    with sink(FilesSinkConnector, texts(folder, format="jsonl")) as run:
        for step in [*steps, "put", "commit"]:
            if step == "put":
                at = run._put.get(QUEUE, 0)
                run.put([at, at + 1])
            elif step == "flush":
                run.flush()
            elif step == "commit":
                run.commit()
            else:
                run.kill()
        reached = run._put[QUEUE]
    assert rows(folder) == list(range(reached))
