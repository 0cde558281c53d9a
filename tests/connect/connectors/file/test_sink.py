from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect import SinkRecord
from headrace.connect.connectors.file import FileSinkConnector
from headrace.errors import ConnectorConfigError
from tests.connect.connectors.runs import QUEUE, SinkRun, configured, sink


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


def test_values_become_lines(path: Path) -> None:
    with sink(FileSinkConnector, {"file": str(path)}) as run:
        run.put(["text", b"bytes", {"a": 1}, None])
        run.put_columns(pa.array(["column", None]))
        run.commit()
    assert path.read_bytes() == b'text\nbytes\n{"a":1}\nnull\ncolumn\nnull\n'


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_columns_of_text_become_lines_at_once(path: Path, kind: pa.DataType) -> None:
    with sink(FileSinkConnector, {"file": str(path)}) as run:
        run.put_columns(pa.array(["zero", "é", "", "two"], kind).slice(1))
        run.put_columns(pa.array([], kind))
        run.commit()
    assert path.read_text() == "é\n\ntwo\n"


def test_lines_end_as_asked(path: Path) -> None:
    with sink(FileSinkConnector, {"file": str(path), "line.end": r"\r\n"}) as run:
        run.put(["a", "b"])
        run.commit()
    assert path.read_bytes() == b"a\r\nb\r\n"


def test_same_records_again_are_taken_once(path: Path) -> None:
    records = [SinkRecord(topic="lines", queue=QUEUE, offset=n, value=str(n)) for n in range(4)]
    with sink(FileSinkConnector, {"file": str(path)}) as run:
        run.task.put(records[:3])
        run.task.put(records)
        run.task.flush({QUEUE: 4})
    assert path.read_text() == "0\n1\n2\n3\n"


@pytest.mark.requirement(45)
def test_what_was_not_committed_is_gone_after_a_kill(path: Path) -> None:
    with sink(FileSinkConnector, {"file": str(path)}) as run:
        run.put(["kept"])
        run.commit()
        run.put(["lost"])
        run.kill()
        assert path.read_text() == "kept\n"
        run.put(["again"])
        run.commit()
    assert path.read_text() == "kept\nagain\n"


def test_sink_goes_on_from_its_own_offsets(path: Path) -> None:
    with sink(FileSinkConnector, {"file": str(path)}) as run:
        run.put(["one"])
        run.flush()  # and the runtime dies before its own commit
        run.kill()
        assert run.next == {QUEUE: 1}


def test_opening_again_forgets_what_was_not_committed(path: Path) -> None:
    with sink(FileSinkConnector, {"file": str(path)}) as run:
        run.put(["half"])
        run.task.open([QUEUE])
        run.task.put([SinkRecord(topic="lines", queue=QUEUE, offset=0, value="whole")])
        run.task.flush({QUEUE: 1})
    assert path.read_text() == "whole\n"


def test_queue_that_moves_to_another_task_goes_on_there(tmp_path: Path) -> None:
    config = {"file": str(tmp_path / "out-{task}.txt")}
    with sink(FileSinkConnector, config, number=0) as first:
        first.put(["one"])
        first.commit()
    with sink(FileSinkConnector, config, number=1) as second:
        assert second.next == {QUEUE: 1}


def test_one_file_has_one_task_and_a_pattern_has_many(path: Path) -> None:
    assert len(configured(FileSinkConnector, {"file": str(path)}).task_configs(4)) == 1
    assert len(configured(FileSinkConnector, {"file": f"{path}{{task}}"}).task_configs(4)) == 4


def test_missing_folder_fails_the_task_at_its_start() -> None:
    with pytest.raises(ConnectorConfigError, match="/no/such/dir of the file"):
        SinkRun(FileSinkConnector, {"file": "/no/such/dir/o.txt"})


def test_offsets_can_be_set_by_hand(tmp_path: Path) -> None:
    texts = {"file": str(tmp_path / "out-{task}.txt")}
    connector = configured(FileSinkConnector, texts)
    where = {
        "rocketmq_topic": QUEUE.topic,
        "rocketmq_broker": QUEUE.broker,
        "rocketmq_queue_id": QUEUE.queue_id,
    }
    config = connector.context.config
    assert connector.alter_offsets(config, [(where, {"rocketmq_queue_offset": 5})])
    with sink(FileSinkConnector, texts, number=1) as run:
        assert run.next == {QUEUE: 5}
        run.put(["five"])
        run.commit()
    assert connector.alter_offsets(config, [(where, None)])
    with sink(FileSinkConnector, texts, number=1) as run:
        assert run.next == {}
    with pytest.raises(ConnectorConfigError, match="rocketmq_broker"):
        connector.alter_offsets(config, [({"rocketmq_topic": "t"}, None)])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(["put", "flush", "commit", "kill"]), max_size=20),
    rotate=st.booleans(),
)
def test_every_record_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rotate: bool
) -> None:
    path = tmp_path_factory.mktemp("sink") / "out.txt"
    config = {"file": str(path)} | ({"rotate.max.bytes": "6"} if rotate else {})
    with sink(FileSinkConnector, config) as run:
        for step in [*steps, "put", "commit"]:
            if step == "put":
                at = run._put.get(QUEUE, 0)
                run.put([str(at), str(at + 1)])
            elif step == "flush":
                run.flush()
            elif step == "commit":
                run.commit()
            else:
                run.kill()
        reached = run._put[QUEUE]
    files = [*sorted(path.parent.glob("out.txt.0*")), path]
    lines = "".join(one.read_text() for one in files).split()
    assert lines == [str(number) for number in range(reached)]
