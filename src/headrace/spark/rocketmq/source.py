"""The data source ``rocketmq`` as Spark knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource

from headrace.errors import ConfigurationError
from headrace.spark.rocketmq.cluster import connect
from headrace.spark.rocketmq.failures import clear_errors
from headrace.spark.rocketmq.options import (
    READ_OPTIONS,
    WriteOptions,
    check_names,
    include_headers,
    read_options,
    write_options,
)
from headrace.spark.rocketmq.reader import RocketMQReader, RocketMQStreamReader
from headrace.spark.rocketmq.schema import arrow_schema, check_written, read_schema
from headrace.spark.rocketmq.writer import RocketMQStreamWriter, RocketMQWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RocketMQSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``rocketmq`` known to a session, for reads and writes, batch and stream.

    Headrace must be installed where Spark's executors run.

    Parameters
    ----------
    spark
        The session.

    Examples
    --------
    >>> from pyspark.sql import DataFrame, SparkSession
    >>> def lines(spark: SparkSession) -> DataFrame:
    ...     register(spark)
    ...     return (
    ...         spark.readStream.format("rocketmq")
    ...         .option("rocketmq.namesrv", "127.0.0.1:9876")
    ...         .option("subscribe", "lines")
    ...         .load()
    ...         .selectExpr("CAST(value AS STRING) AS line")
    ...     )
    """
    spark.dataSource.register(RocketMQSource)


class RocketMQSource(DataSource):
    """Topics as data frames; Spark makes it for ``format("rocketmq")``."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "rocketmq"

    @property
    def _given(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.options)

    @clear_errors
    def schema(self) -> StructType:
        """Give the columns of a read; Spark asks for them as soon as ``load`` is called."""
        check_names(self._given, READ_OPTIONS)
        return read_schema(headers=include_headers(self._given))

    @clear_errors
    def reader(self, schema: StructType) -> RocketMQReader:
        """Make the reader of a batch read."""
        return RocketMQReader(read_options(self._given, "batch"), arrow_schema(schema))

    @clear_errors
    def streamReader(self, schema: StructType) -> RocketMQStreamReader:
        """Make the reader of a query."""
        return RocketMQStreamReader(read_options(self._given, "stream"), arrow_schema(schema))

    @clear_errors
    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:  # noqa: FBT001
        """Make the writer of a batch write."""
        if overwrite:
            raise ConfigurationError(
                "the rocketmq sink cannot overwrite a topic: messages stay until they expire",
                hint='write with .mode("append")',
            )
        return RocketMQWriter(self._write_options(schema))

    @clear_errors
    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> RocketMQStreamWriter:
        """Make the writer of a query; the output mode ``complete`` appends every time."""
        return RocketMQStreamWriter(self._write_options(schema))

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = write_options(self._given)
        check_written(schema, topic_given=options.topic is not None)
        if options.topic is not None:
            # Here the user sees the error at once, and not after some failed tasks.
            connect(options.cluster).queues(options.topic, for_="write")
        return options
