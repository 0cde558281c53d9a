"""Reads and writes through Spark itself, on both kinds of cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from headrace.client import Admin, Client, Message, Producer
from headrace.spark.rocketmq.source import READ_COLUMNS, read_schema
from tests.clusters import Cluster, await_messages

pytestmark = pytest.mark.spark

MakeTopic = Callable[..., str]


class Rig:
    """Reads and writes of one cluster."""

    def __init__(self, spark: SparkSession, cluster: Cluster, client: Client, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.client = client
        self.folder = folder

    def read(self, topic: str, **options: str) -> DataFrame:
        return self.reader(topic, **options).load()

    def reader(self, topic: str, **options: str) -> DataFrameReader:
        reader = self.spark.read.format("rocketmq").options(**options)
        return reader.options(**{"rocketmq.namesrv": self.cluster.namesrv, "subscribe": topic})

    def stream(self, topic: str, **options: str) -> DataStreamReader:
        reader = self.spark.readStream.format("rocketmq").options(**options)
        # New queues join soon.
        given = {"rocketmq.namesrv": self.cluster.namesrv, "rocketmq.routeRefresh": "50 ms"}
        return reader.options(**given, subscribe=topic)

    def write(self, frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("rocketmq").mode("append").options(**options)
        writer.option("rocketmq.namesrv", self.cluster.namesrv).save()

    def copy(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        """A query that writes to a topic, and goes on where its last run ended."""
        writer = frame.writeStream.format("rocketmq").option("topic", topic)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.option("rocketmq.namesrv", self.cluster.namesrv)

    def send(self, topic: str, queue: int, *bodies: str) -> None:
        """Send messages to a queue, and wait until they can be read."""
        to = next(one for one in self.client.queues(topic, refresh=True) if one.queue_id == queue)
        messages = [Message(topic=topic, body=body.encode()) for body in bodies]
        result = Producer(self.client).send_batch(messages, to)
        await_messages(self.client, to, result.offset + len(bodies))

    def values(self, topic: str) -> list[str]:
        rows = self.read(topic).selectExpr("CAST(value AS STRING) AS value").collect()
        return sorted(row.value for row in rows)


@pytest.fixture
def rig(spark: SparkSession, cluster: Cluster, client: Client, tmp_path: Path) -> Rig:
    return Rig(spark, cluster, client, tmp_path)


@pytest.fixture
def own(spark: SparkSession, embedded: Cluster, tmp_path: Path) -> Rig:
    """What is the same on every cluster is tried on the embedded broker only."""
    return Rig(spark, embedded, Client(embedded.namesrv), tmp_path)


@pytest.fixture
def own_topic(own: Rig) -> MakeTopic:
    def make(queues: int = 2) -> str:
        name = f"source-{time.time_ns()}"
        Admin(own.client).create_topic(name, queues=queues)
        return name

    return make


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not happen within 60 s"
        time.sleep(0.05)


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(60), "the query did not end within 60 s"


def test_every_column_of_a_message_is_read(rig: Rig, make_topic: MakeTopic) -> None:
    topic = make_topic()
    message = Message(
        topic=topic,
        body=b"hello",
        keys="k1",
        tags="red",
        properties={"origin": "web", "lang": "de"},
        born=1_700_000_000_123,
    )
    sent = Producer(rig.client).send(message)
    await_messages(rig.client, sent.queue, 1)
    before = datetime.now(UTC).timestamp()
    (row,) = rig.read(topic, includeHeaders="true").collect()
    assert row.asDict() | {"timestamp": None, "headers": None, "bornTimestamp": None} == {
        "key": b"k1",
        "value": b"hello",
        "topic": topic,
        "broker": sent.queue.broker,
        "queue": sent.queue.queue_id,
        "offset": 0,
        "timestamp": None,
        "bornTimestamp": None,
        "tags": "red",
        "headers": None,
    }
    assert {pair.key: pair.value for pair in row.headers} == {"origin": "web", "lang": "de"}
    assert row.bornTimestamp.timestamp() == pytest.approx(1_700_000_000.123)
    assert abs(row.timestamp.timestamp() - before) < 60


def test_written_rows_read_back(rig: Rig, make_topic: MakeTopic) -> None:
    topic = make_topic()
    frame = rig.spark.sql(
        """
        SELECT * FROM VALUES
            (CAST('k' AS BINARY), 'plain', 'red', map('a', '1', 'b', '2'), 1),
            (X'FF01', 'binary key', NULL, NULL, 2),
            (CAST('' AS BINARY), 'empty key', '', map('a', 'ü'), 3),
            (NULL, 'no key', 'blue', NULL, 4)
            AS rows(key, value, tags, pairs, second)
        """
    ).selectExpr(
        "key",
        "value",
        "tags",
        "transform(map_entries(pairs), p -> struct(p.key, p.value)) AS headers",
        "timestamp_seconds(second) AS timestamp",
    )
    rig.write(frame, topic=topic)
    # RocketMQ confirms messages some time before they can be read.
    until(lambda: rig.read(topic).count() == 4)
    rows = rig.read(topic, includeHeaders="true").selectExpr(
        "CAST(value AS STRING) AS value",
        "key",
        "tags",
        "map_from_entries(headers) AS headers",
        "unix_seconds(bornTimestamp) AS born",
    )
    assert {row.value: tuple(row)[1:] for row in rows.collect()} == {
        "plain": (b"k", "red", {"a": "1", "b": "2"}, 1),
        "binary key": (b"\xff\x01", None, None, 2),
        "empty key": (b"", None, {"a": "ü"}, 3),
        "no key": (None, "blue", None, 4),
    }


def test_a_query_copies_a_topic_and_goes_on_after_a_restart(
    rig: Rig, make_topic: MakeTopic
) -> None:
    source, target = make_topic(), make_topic()
    group = f"follows-{source}"
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4", "groupId": group}
    lines = rig.stream(source, **options).load().select("value", "key")
    rig.send(source, 0, *(f"a{number}" for number in range(9)))
    rig.send(source, 1, "b0")
    query = rig.copy(lines, target).trigger(availableNow=True).start()
    finish(query)
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in sizes if size] == [4, 4, 2]
    progress = Admin(rig.client).group_progress(group, source)
    assert sum(one.lag for one in progress.values()) == 0
    rig.send(source, 1, "b1")
    finish(rig.copy(lines, target).trigger(availableNow=True).start())
    wanted = sorted([*(f"a{number}" for number in range(9)), "b0", "b1"])
    until(lambda: len(rig.values(target)) >= len(wanted))
    assert rig.values(target) == wanted


@pytest.mark.slow
@pytest.mark.rocketmq
def test_rocketmqs_own_tool_shows_the_lag(
    spark: SparkSession,
    rocketmq: Cluster,
    tmp_path: Path,
) -> None:
    with Client(rocketmq.namesrv) as client:
        rig = Rig(spark, rocketmq, client, tmp_path)
        source, target = (f"lag-{name}-{time.time_ns()}" for name in ("in", "out"))
        for topic in (source, target):
            Admin(client).create_topic(topic, queues=1)
        rig.send(source, 0, "one", "two", "three")
        lines = rig.stream(source, startingOffsets="earliest", groupId="shown-by-tool").load()
        finish(rig.copy(lines.select("value"), target).trigger(availableNow=True).start())
        rig.send(source, 0, "four")
        shown = rocketmq.mqadmin("consumerProgress", "-g", "shown-by-tool")
        (line,) = [line.split() for line in shown.splitlines() if line.startswith(source)]
        assert line[3:5] == ["4", "3"]


def test_new_queues_join_a_running_query(own: Rig, own_topic: MakeTopic) -> None:
    source, target = own_topic(1), own_topic(1)
    query = own.copy(own.stream(source).load().select("value"), target).start()
    try:
        until(lambda: query.lastProgress is not None)
        own.send(source, 0, "old queue")
        Admin(own.client).create_topic(source, queues=3)
        own.send(source, 2, "new queue")
        until(lambda: own.values(target) == ["new queue", "old queue"])
    finally:
        query.stop()


def test_progress_shows_where_the_queues_end(own: Rig, own_topic: MakeTopic) -> None:
    source, target = own_topic(1), own_topic(1)
    own.send(source, 0, *"abc")
    lines = own.stream(source, startingOffsets="earliest", maxOffsetsPerTrigger="2").load()
    query = own.copy(lines.select("value"), target).trigger(availableNow=True).start()
    finish(query)
    first = query.recentProgress[0]["sources"][0]
    assert '"broker-a@0": 2' in first["endOffset"] or ":2" in first["endOffset"]
    assert "3" in first["latestOffset"]


def test_only_the_columns_of_a_given_schema_are_read(own: Rig, own_topic: MakeTopic) -> None:
    topic = own_topic(1)
    own.send(topic, 0, "a", "b")
    frame = own.reader(topic).schema("offset BIGINT, value BINARY").load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0, b"a"), (1, b"b")]


def test_the_schema_has_headers_on_request(own: Rig) -> None:
    assert own.read("any").schema == read_schema(headers=False)
    assert own.read("any", includeHeaders="true").columns == list(READ_COLUMNS)


def test_large_ranges_become_more_tasks(own: Rig, own_topic: MakeTopic) -> None:
    topic = own_topic(1)
    own.send(topic, 0, *(str(number) for number in range(12)))
    frame = own.read(topic, minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert frame.count() == 12


def test_an_empty_topic_gives_no_rows(own: Rig, own_topic: MakeTopic) -> None:
    assert own.read(own_topic()).count() == 0


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        act()
    return str(caught.value)


def test_a_misspelt_option_is_refused_as_soon_as_load_is_called(own: Rig) -> None:
    text = refused(lambda: own.read("any", startingOfsets="earliest"))
    assert "has no option 'startingofsets'" in text
    assert "did you mean 'startingOffsets'?" in text
    # The way through our own code would bury the message.
    assert text.count('File "') == 1


def test_a_column_that_does_not_exist_is_refused(own: Rig, own_topic: MakeTopic) -> None:
    reader = own.reader(own_topic()).schema("vlaue BINARY")
    text = refused(lambda: reader.load().count())
    assert "source has no column 'vlaue'" in text
    assert "did you mean 'value'?" in text


def test_a_column_of_another_type_is_refused(own: Rig, own_topic: MakeTopic) -> None:
    reader = own.reader(own_topic()).schema("value STRING")
    text = refused(lambda: reader.load().count())
    assert "column 'value' has the type string, but must have binary" in text


def test_a_missing_topic_is_named(own: Rig) -> None:
    text = refused(lambda: own.read("nowhere").count())
    assert "topic 'nowhere' does not exist" in text
    assert "headrace topic create nowhere" in text


def test_a_missing_topic_ends_a_query(own: Rig, own_topic: MakeTopic) -> None:
    query = own.copy(own.stream("nowhere").load().select("value"), own_topic()).start()
    with pytest.raises(StreamingQueryException, match="topic 'nowhere' does not exist"):
        query.awaitTermination(60)


def test_an_address_without_a_broker_is_named(spark: SparkSession) -> None:
    reader = spark.read.format("rocketmq").option("subscribe", "any")
    away = {"rocketmq.namesrv": "127.0.0.1:9", "rocketmq.connectTimeout": "100 ms"}
    text = refused(lambda: reader.options(**away).load().count())
    assert "ConnectionFailedError" in text
    assert "127.0.0.1:9" in text


@pytest.mark.parametrize(
    ("columns", "says", "hint"),
    [
        ("'a' AS vlaue", "takes no column 'vlaue'", "did you mean 'value'?"),
        ("'a' AS key", "needs a column 'value', but there are 'key'", "alias('value')"),
        ("1 AS value", "column 'value' has the type int", "must have binary or string"),
        ("'a' AS value, 'b' AS queue", "column 'queue' has the type string", "int or bigint"),
    ],
)
def test_a_wrong_schema_is_refused_and_the_column_named(
    own: Rig, own_topic: MakeTopic, columns: str, says: str, hint: str
) -> None:
    topic = own_topic()
    text = refused(lambda: own.write(own.spark.sql(f"SELECT {columns}"), topic=topic))
    assert says in text
    assert hint in text


def test_a_write_needs_a_topic_that_exists(own: Rig) -> None:
    frame = own.spark.sql("SELECT 'a' AS value")
    assert "neither the option 'topic' nor a column" in refused(lambda: own.write(frame))
    text = refused(lambda: own.write(frame, topic="nowhere"))
    assert "topic 'nowhere' does not exist" in text


def test_a_topic_is_never_overwritten(own: Rig, own_topic: MakeTopic) -> None:
    writer = own.spark.sql("SELECT 'a' AS value").write.format("rocketmq").mode("overwrite")
    writer = writer.options(**{"rocketmq.namesrv": own.cluster.namesrv, "topic": own_topic()})
    assert "cannot overwrite a topic" in refused(writer.save)


def test_rows_name_their_topics_and_queues(own: Rig, own_topic: MakeTopic) -> None:
    first, second = own_topic(), own_topic()
    frame = own.spark.createDataFrame(
        [(first, 1, "a"), (second, 0, "b"), (second, 1, "c")],
        "topic STRING, queue INT, value STRING",
    )
    own.write(frame)
    rows = own.read(f"{first},{second}").selectExpr("topic", "queue", "CAST(value AS STRING)")
    assert sorted(map(tuple, rows.collect())) == sorted(
        [(first, 1, "a"), (second, 0, "b"), (second, 1, "c")]
    )


def test_a_row_above_the_size_limit_is_refused(own: Rig, own_topic: MakeTopic) -> None:
    frame = own.spark.sql("SELECT repeat('x', 5 * 1024 * 1024) AS value")
    assert "MessageTooLargeError" in refused(lambda: own.write(frame, topic=own_topic()))


def test_many_rows_arrive_once_each(own: Rig, own_topic: MakeTopic) -> None:
    topic = own_topic(4)
    frame = own.spark.range(20_000).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS key"
    )
    own.write(frame, topic=topic)
    rows = own.read(topic, minPartitions="6").selectExpr("CAST(CAST(value AS STRING) AS INT) AS id")
    counts = rows.selectExpr("count(*)", "count(DISTINCT id)", "sum(id)").first()
    assert counts is not None
    assert tuple(counts) == (20_000, 20_000, sum(range(20_000)))


def test_registering_twice_is_harmless(own: Rig, own_topic: MakeTopic) -> None:
    from headrace.spark import register

    register(own.spark)
    with pytest.raises(AnalysisException):
        own.read(own_topic(), nothing="1")
