"""What a source that Spark reads takes next: planned from the committed position alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.connect.connectors.spark import SparkSourceConnector, SparkSourceTask
from headrace.errors import ConnectorConfigError, TaskFailedError
from headrace.spark.formats import SparkReads, planner_of

pytestmark = pytest.mark.spark


def order(**keys: Any) -> Mapping[str, Any]:
    texts = {"topic": "rows", "settle.ms": "0"} | keys
    config = SparkSourceConnector.config.parse({name: str(text) for name, text in texts.items()})
    assert list(SparkSourceConnector().validate(config)) == []
    return SparkSourceTask().in_engine(config)


def rows(frame: DataFrame, column: str = "n") -> list[Any]:
    return sorted(row[column] for row in frame.select(column).collect())


class Reading:
    """Plans one batch after the other, and commits each."""

    def __init__(self, spark: SparkSession, **keys: Any) -> None:
        self.spark = spark
        self.planner = planner_of(order(**keys))
        self.offset: dict[str, Any] | None = None

    def next(self, column: str = "n") -> list[Any]:
        plan = self.planner.plan(self.spark, self.offset)
        if plan is None:
            return []
        found = rows(plan.rows, column)
        self.offset = plan.offset
        return found


def csv(folder: Path, name: str, *numbers: int, age: int = 10) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("n\n" + "".join(f"{number}\n" for number in numbers))
    # The older ones come first.
    at = time.time() - age
    os.utime(path, (at, at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


CSV = {"format": "csv", "schema": "n long", "option.header": "true"}


class TestFiles:
    """Files in folders."""

    def test_come_once_and_the_oldest_first(self, spark: SparkSession, folder: Path) -> None:
        csv(folder, "b.csv", 1, 2, age=30)
        csv(folder, "a.csv", 3, age=20)
        csv(folder, "below/c.csv", 4)
        reading = Reading(spark, path=folder, **CSV, **{"batch.max.files": 2})
        assert [reading.next(), reading.next(), reading.next()] == [[1, 2, 3], [4], []]
        csv(folder, "d.csv", 5, age=5)
        assert reading.next() == [5]

    def test_come_again_when_they_have_changed(self, spark: SparkSession, folder: Path) -> None:
        csv(folder, "a.csv", 1)
        reading = Reading(spark, path=folder, **CSV)
        assert reading.next() == [1]
        csv(folder, "a.csv", 1, 2, age=5)
        assert reading.next() == [1, 2]

    def test_wait_until_nobody_writes_to_them(self, spark: SparkSession, folder: Path) -> None:
        csv(folder, "a.csv", 1, age=0)
        assert Reading(spark, path=folder, **CSV, **{"settle.ms": "1 h"}).next() == []

    def test_may_have_any_name_and_be_chosen_by_it(self, spark: SparkSession, folder: Path) -> None:
        csv(folder, "a [1]{2}.csv", 1)
        csv(folder, "a.txt", 2)
        assert Reading(spark, path=folder, files="*.csv", **CSV).next() == [1]

    def test_are_forgotten_after_a_time_and_left_out_before_it(
        self, spark: SparkSession, folder: Path
    ) -> None:
        csv(folder, "old.csv", 1, age=3600)
        csv(folder, "new.csv", 2)
        reading = Reading(spark, path=folder, **CSV, **{"remember.ms": "10 min"})
        assert reading.next() == [1, 2]
        assert reading.offset is not None
        assert [Path(name).name for name in reading.offset["files"]] == ["new.csv"]
        csv(folder, "late.csv", 3, age=1800)
        assert reading.next() == []

    def test_have_the_columns_of_their_folders(self, spark: SparkSession, folder: Path) -> None:
        csv(folder, "day=1/a.csv", 1)
        csv(folder, "day=2/a.csv", 2, age=5)
        reading = Reading(spark, path=folder, **CSV)
        assert reading.next("day") == [1, 2]

    def test_that_are_large_have_batches_of_their_own(
        self, spark: SparkSession, folder: Path
    ) -> None:
        for number in range(3):
            csv(folder, f"{number}.csv", number, age=10 - number)
        reading = Reading(spark, path=folder, **CSV, **{"batch.max.bytes": "1"})
        assert [reading.next() for _ in range(3)] == [[0], [1], [2]]


class TestByColumn:
    """Rows in the order of a column."""

    def test_come_in_batches_that_no_equal_values_are_torn_by(
        self, spark: SparkSession, folder: Path
    ) -> None:
        csv(folder, "a.csv", 1, 2, 2, 2, 3)
        keys = {"increasing.column": "n", "batch.max.rows": 2}
        reading = Reading(spark, path=folder, **CSV, **keys)
        assert [reading.next(), reading.next(), reading.next()] == [[1, 2, 2, 2], [3], []]
        csv(folder, "b.csv", 4, 1)
        assert reading.next() == [4]
        assert reading.offset == {"after": "4"}

    def test_go_by_times_to_the_microsecond(self, spark: SparkSession, tmp_path: Path) -> None:
        path = str(tmp_path / "table")
        times = "timestamp'2026-10-25 00:30:00.000001Z' + make_interval(0, 0, 0, 0, 0, 0, n) as at"
        spark.range(1, 4).selectExpr("id as n").selectExpr("n", times).write.parquet(path)
        keys = {"increasing.column": "at", "batch.max.rows": 1}
        reading = Reading(spark, format="parquet", path=path, **keys)
        assert [reading.next() for _ in range(4)] == [[1], [2], [3], []]

    def test_need_a_column_that_there_is(self, spark: SparkSession, folder: Path) -> None:
        csv(folder, "a.csv", 1)
        reading = Reading(spark, path=folder, **CSV, **{"increasing.column": "m"})
        with pytest.raises(ConnectorConfigError, match="no column 'm', but n"):
            reading.next()


def test_tables_of_databases_are_read_by_a_column(spark: SparkSession) -> None:
    # Derby comes with Spark, and lives in its process.
    options = {"url": "jdbc:derby:memory:shop;create=true", "dbtable": "orders"}
    added = spark.createDataFrame([(1, "a"), (2, "b")], "id int, item string")
    added.write.format("jdbc").options(**options).save()
    keys = {f"option.{name}": text for name, text in options.items()}
    reading = Reading(spark, format="jdbc", **{"increasing.column": "id"}, **keys)
    assert reading.next("item") == ["a", "b"]
    more = spark.createDataFrame([(3, "c")], "id int, item string")
    more.write.format("jdbc").options(**options).mode("append").save()
    assert [reading.next("item"), reading.next("item")] == [["c"], []]


def test_everything_comes_once_where_nothing_else_is_known(
    spark: SparkSession, folder: Path
) -> None:
    csv(folder, "a.csv", 1, 2)
    reading = Reading(spark, path=folder, **CSV, read="once")
    assert [reading.next(), reading.next()] == [[1, 2], []]


def test_what_spark_cannot_do_is_told_without_secrets(spark: SparkSession) -> None:
    keys = {"format": "nowhere", "option.password": "nowhere"}
    reads = SparkReads(order(**keys), "poll", 2, lambda: spark, dict)
    with pytest.raises(TaskFailedError, match=r"Spark cannot look for what is new") as failure:
        reads.wait(1)
    assert "nowhere" not in str(failure.value).partition(": ")[2]
    assert "spark.jars" in str(failure.value)
