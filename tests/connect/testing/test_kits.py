"""The test kit runs tasks as the runtime does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from headrace.connect import (
    Config,
    Queue,
    RetriableError,
    SchemaError,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
    declare,
    key,
)
from headrace.connect.schema import INT64, STRING
from headrace.connect.testing import SinkTaskKit, SourceTaskKit
from headrace.errors import ConfigurationError, ConnectorConfigError, TaskFailedError


class CountTask(SourceTask):
    calls: ClassVar[list[str]] = []

    def start(self, config: Config) -> None:
        self.calls.append("start")
        self.share = config.texts["share"]
        found = self.context.offsets.get({"share": self.share})
        self.count = found["count"] if found else config["first"]

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        if self.context.config["mode"] == "silent":
            return None
        if self.context.config["mode"] == "fail":
            self.context.fail("the numbers have run out")
            return None
        if self.context.config["mode"] == "columns":
            return SourceBatch(
                partition={"share": self.share},
                offset={"count": 3},
                topic="n",
                value=pa.array([1, 2, 3]),
            )
        self.count += 1
        return [self.record(self.count)]

    def record(self, value: Any) -> SourceRecord:
        wrong = self.context.config["mode"] == "wrong"
        return SourceRecord(
            partition={"share": self.share},
            offset={"count": object() if self.context.config["mode"] == "odd" else value},
            topic="n",
            value=value,
            value_schema=STRING if wrong else INT64,
        )

    def commit(self) -> None:
        self.calls.append("commit")

    def stop(self) -> None:
        self.calls.append("stop")


class CountConnector(SourceConnector):
    task = CountTask
    config = declare(
        key("first", int, "Where to begin.", default=0),
        key("mode", str, "What goes wrong.", default=""),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        return [{"share": str(number)} for number in range(max_tasks)]


@pytest.fixture(autouse=True)
def fresh() -> None:
    CountTask.calls.clear()
    ShelfTask.shelf.clear()
    ShelfTask.kept.clear()
    ShelfTask.calls.clear()


def test_task_goes_on_behind_what_was_committed() -> None:
    with SourceTaskKit(CountConnector, {"first": 10}) as kit:
        kit.read(2)
        kit.commit()
        kit.read(3)
        kit.restart()
        assert [record.value for record in kit.read(1)] == [13]
    assert kit.positions == [({"share": "0"}, {"count": 12})]
    assert CountTask.calls == ["start", "commit", "stop", "start", "stop"]


def test_crash_calls_no_stop() -> None:
    with SourceTaskKit(CountConnector, {}) as kit:
        kit.crash()
    assert CountTask.calls == ["start", "start", "stop"]


@pytest.mark.defect(15)
def test_each_task_has_the_connectors_config_and_its_own_on_top() -> None:
    with SourceTaskKit(CountConnector, {"tasks.max": 3, "first": 5}, number=2) as kit:
        assert len(kit.task_configs) == 3
        (record,) = kit.poll()
        assert (record.partition, record.value) == ({"share": "2"}, 6)


def test_columns_are_committed_as_one() -> None:
    with SourceTaskKit(CountConnector, {"mode": "columns"}) as kit:
        assert [record.value for record in kit.poll()] == [1, 2, 3]
        assert kit.positions == []
        kit.commit()
        assert kit.positions == [({"share": "0"}, {"count": 3})]


@pytest.mark.parametrize(("mode", "why"), [("wrong", "does not fit string"), ("odd", "JSON")])
def test_record_that_contradicts_itself_is_found(mode: str, why: str) -> None:
    with (
        SourceTaskKit(CountConnector, {"mode": mode}) as kit,
        pytest.raises(SchemaError, match=why),
    ):
        kit.poll()


@pytest.mark.parametrize("mode", ["", "columns"])
def test_messages_have_passed_transforms_and_converters(mode: str) -> None:
    texts = {
        "mode": mode,
        "transforms": "hoist,route",
        "transforms.hoist.type": "HoistField$Value",
        "transforms.hoist.field": "number",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "(.*)",
        "transforms.route.replacement": "$1-numbers",
        "value.converter": "JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    with SourceTaskKit(CountConnector, texts) as kit:
        first = kit.messages()[0]
        kit.commit()
        assert (first["topic"], first["value"]) == ("n-numbers", b'{"number":1}')
        assert len(kit.positions) == 1


def test_silent_source_ends_the_wait() -> None:
    with SourceTaskKit(CountConnector, {"mode": "silent"}) as kit:
        assert kit.read_all() == []
        with pytest.raises(TimeoutError, match="Only 0 of 1"):
            kit.read(1, timeout=timedelta(milliseconds=1))


def test_failure_that_the_task_reports_ends_the_test() -> None:
    with (
        SourceTaskKit(CountConnector, {"mode": "fail"}) as kit,
        pytest.raises(TaskFailedError, match="the numbers have run out"),
    ):
        kit.poll()


def test_config_is_checked_as_the_runtime_does() -> None:
    with pytest.raises(ConnectorConfigError) as failure:
        SourceTaskKit(CountConnector, {"tasks.max": 0, "frist": 1})
    assert {name for name, _ in failure.value.problems} == {"tasks.max", "frist"}


class BoundlessConnector(CountConnector):
    def task_configs(self, max_tasks: int) -> list[Mapping[str, Any]]:
        return [{"share": 7}] if max_tasks > 1 else [{"share": "0"}, {"share": "1"}]


@pytest.mark.parametrize(
    ("tasks", "why"), [(1, "2 configs, and tasks.max is 1"), (2, "the int 7 for share")]
)
def test_task_configs_that_the_runtime_would_refuse_are_refused(tasks: int, why: str) -> None:
    kit = SourceTaskKit(BoundlessConnector, {"tasks.max": tasks})
    with pytest.raises(ConfigurationError, match=why), kit:
        pass


class ShelfTask(SinkTask):
    """Keeps rows and offsets together, as a sink that works exactly once does."""

    shelf: ClassVar[list[Any]] = []
    kept: ClassVar[dict[Queue, int]] = {}
    calls: ClassVar[list[str]] = []

    def start(self, config: Config) -> None:
        self.rows: list[Any] = []

    def open(self, queues: Collection[Queue]) -> None:
        self.calls.append(f"open {len(queues)}")

    def close(self, queues: Collection[Queue]) -> None:
        self.calls.append(f"close {len(queues)}")

    def stop(self) -> None:
        self.calls.append("stop")

    def offsets(self) -> Mapping[Queue, int] | None:
        return self.kept if self.context.config["exact"] else None

    def put(self, records: Sequence[SinkRecord]) -> None:
        for record in records:
            if record.value == "away" and record.timestamp_ms is None:
                message = "the shelf is away"
                raise RetriableError(message)
            if record.value == "bad":
                self.context.report(record, ValueError("too heavy"))
            else:
                self.rows.append(record.value)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        self.shelf.extend(self.rows)
        self.kept.update(offsets)
        self.rows.clear()


class ShelfConnector(SinkConnector):
    task = ShelfTask
    config = declare(key("exact", bool, "Whether the shelf keeps offsets.", default=False))


def test_records_that_were_not_committed_come_again() -> None:
    with SinkTaskKit(ShelfConnector, {}) as kit:
        kit.send("a", "b")
        assert kit.put() == 2
        kit.flush(commit=False)
        kit.crash()
        assert kit.deliver() == 2
        assert kit.deliver() == 0
    assert ShelfTask.shelf == ["a", "b", "a", "b"]
    assert ShelfTask.calls == ["open 1", "open 1", "close 1", "stop"]


def test_sink_that_keeps_its_offsets_gets_nothing_twice() -> None:
    with SinkTaskKit(ShelfConnector, {"exact": True}) as kit:
        kit.send("a", "b")
        kit.put()
        kit.crash()
        kit.put(1)
        kit.flush(commit=False)
        kit.crash()
        assert kit.deliver() == 1
    assert ShelfTask.shelf == ["a", "b"]


def test_retriable_error_gives_the_same_records_again() -> None:
    with SinkTaskKit(ShelfConnector, {}) as kit:
        kit.send("away")
        for _ in range(2):
            with pytest.raises(RetriableError, match="the shelf is away"):
                kit.put()


def test_reported_record_raises_unless_it_is_tolerated() -> None:
    with SinkTaskKit(ShelfConnector, {}) as kit:
        kit.send("bad")
        with pytest.raises(ValueError, match="too heavy"):
            kit.put()
    with SinkTaskKit(ShelfConnector, {"errors.tolerance": "all"}) as kit:
        kit.send("a", "bad", "b")
        kit.deliver()
        assert [(record.offset, str(error)) for record, error in kit.reported] == [(1, "too heavy")]
    assert ShelfTask.shelf == ["a", "b"]


def test_paused_queue_gives_nothing_until_it_is_resumed() -> None:
    with SinkTaskKit(ShelfConnector, {}, queues=2) as kit:
        first, second = kit.queues
        kit.send("a", queue=0)
        kit.send("b", queue=second)
        kit.context.pause(first)
        kit.deliver()
        kit.context.resume(first)
        kit.deliver()
    assert ShelfTask.shelf == ["b", "a"]


def test_task_may_go_back_to_an_offset() -> None:
    with SinkTaskKit(ShelfConnector, {}) as kit:
        kit.send("a", "b")
        kit.deliver()
        kit.context.offset(kit.queues[0], 1)
        kit.deliver()
    assert ShelfTask.shelf == ["a", "b", "b"]


def test_columns_reach_the_task_a_queue_at_a_time() -> None:
    with SinkTaskKit(ShelfConnector, {"topics": "x,y"}) as kit:
        kit.send("a", "b", queue=Queue("x", "broker-a", 0))
        kit.send("c", queue=Queue("y", "broker-a", 0))
        assert kit.deliver(columns=True) == 3
    assert ShelfTask.shelf == ["a", "b", "c"]
