"""Avro, Protobuf, and the frames of RocketMQ's schema registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark import cloudpickle

from headrace import StreamBuilder, TopologyTestDriver, count, serdes, sum_
from headrace.columns import col
from headrace.errors import DeserializationError, SerializationError
from headrace.serdes import RegisteredSchema, SchemaRegistry

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "price", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "tax",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "more", "type": {"type": "map", "values": "long"}},
    ],
}
ORDER = {
    "city": "oslo",
    "price": 3,
    "note": None,
    "kind": "B",
    "tags": ["x", "y"],
    "day": date(2024, 1, 2),
    "at": datetime(2024, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
    "tax": Decimal("1.25"),
    "more": {"a": 1},
}


def message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="headrace_test.proto", package="headrace_test", syntax="proto3"
    )
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, repeated) in enumerate(
        [
            ("city", kinds.TYPE_STRING, False),
            ("price", kinds.TYPE_UINT64, False),
            ("tags", kinds.TYPE_STRING, True),
            ("raw", kinds.TYPE_BYTES, False),
            ("weight", kinds.TYPE_DOUBLE, False),
        ],
        1,
    ):
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)
    message.oneof_decl.add(name="_note")
    message.field.add(
        name="note",
        number=9,
        type=kinds.TYPE_STRING,
        label=kinds.LABEL_OPTIONAL,
        proto3_optional=True,
        oneof_index=0,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName("headrace_test.proto")
    return message_factory.GetMessageClass(found.message_types_by_name["Order"])


Order = message_class()
Order.__module__ = __name__


def test_avro_comes_back_also_in_another_process() -> None:
    serde = cloudpickle.loads(cloudpickle.dumps(serdes.avro(AVRO)))  # type: ignore[no-untyped-call]
    assert serde.deserialize(serde.serialize(ORDER)) == ORDER
    assert repr(serde) == "avro(Order)"


def test_avro_columns_are_those_with_a_type_of_their_own() -> None:
    serde = serdes.avro(json.dumps(AVRO))
    batch = serde.read_columns(serde.serialize_many([ORDER, ORDER | {"note": "x"}]))
    assert batch.to_pylist() == [
        {name: value for name, value in one.items() if name != "more"}
        for one in (ORDER, ORDER | {"note": "x"})
    ]


def test_a_type_that_an_avro_schema_names_again_has_a_column_again() -> None:
    kind = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
    fields = [{"name": "kind", "type": kind}, {"name": "before", "type": ["null", "Kind"]}]
    serde = serdes.avro({"type": "record", "name": "Change", "fields": fields})
    rows = [{"kind": "A", "before": "B"}, {"kind": "A", "before": None}]
    assert serde.read_columns(serde.serialize_many(rows)).to_pylist() == rows


def test_what_is_no_avro_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="it is no schema of Avro: UnknownType: nope"):
        serdes.avro("nope")


def test_avro_of_another_schema_is_refused() -> None:
    serde = serdes.avro("string")
    with pytest.raises(ValueError, match="another schema"):
        serde.deserialize(serde.serialize("a") + b"x")
    with pytest.raises((EOFError, IndexError)):
        serdes.avro(AVRO).deserialize(b"\x06te")


def test_protobuf_comes_back() -> None:
    serde = serdes.protobuf(Order)
    order = Order(city="oslo", price=3, tags=["x"])
    assert serde.deserialize_many(serde.serialize_many([order])) == [order]
    with pytest.raises(TypeError, match="writes Order"):
        serde.serialize({"city": "oslo"})
    assert serde.hint is Order


def test_protobuf_columns_tell_absent_from_empty() -> None:
    serde = serdes.protobuf(Order)
    orders = [Order(city="oslo", price=2**64 - 1, tags=["x", "y"]), Order(note="", raw=b"r")]
    found = serde.read_columns(serde.serialize_many(orders)).to_pydict()
    assert found["city"] == ["oslo", ""]
    assert list(map(int, found["price"])) == [2**64 - 1, 0]
    assert found["tags"] == [["x", "y"], []]
    assert found["note"] == [None, ""]
    assert found["raw"] == [b"", b"r"]


@pytest.mark.parametrize(
    ("serde", "orders"),
    [
        (serdes.avro(AVRO), [ORDER, ORDER | {"price": 4}, ORDER | {"city": "rome"}]),
        (
            serdes.protobuf(Order),
            [Order(city=city, price=n) for city, n in [("oslo", 3), ("oslo", 4), ("rome", 3)]],
        ),
    ],
    ids=["avro", "protobuf"],
)
def test_pipelines_of_columns_read_them(serde: Any, orders: list[Any]) -> None:
    builder = StreamBuilder("job")
    found = builder.source("orders", serde).where(col("price") > 0)
    found.group_by("city").agg(count(), sum_("price")).to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for order in orders:
                driver.input("orders", serde).send(order)
        rows = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert sorted(rows, key=lambda row: str(row["city"])) == [
        {"city": "oslo", "count": 2, "sum_price": 7},
        {"city": "rome", "count": 1, "sum_price": 3},
    ]


def test_frames_are_those_of_the_java_serdes() -> None:
    avro = serdes.registered(RegisteredSchema(0x0102, "AVRO", '"string"'))
    body = avro.serialize("tea")
    assert body == b"\x10" + b"\0\0\0\0\0\0\x01\x02" + b"\x06tea"
    assert avro.deserialize(body) == "tea"
    older = b"\x20" + b"\0\0\0\0\0\0\x01\x02" + bytes(8) + b"\x06tea"
    assert avro.deserialize(older) == "tea"


def test_versions_of_a_schema_are_read_by_their_ids() -> None:
    first = serdes.registered(RegisteredSchema(1, "AVRO", '"string"'))
    second = serdes.registered(RegisteredSchema(2, "AVRO", '"long"', {1: '"string"'}))
    copied = cloudpickle.loads(cloudpickle.dumps(second))  # type: ignore[no-untyped-call]
    assert copied.deserialize(first.serialize("tea")) == "tea"
    assert copied.deserialize(second.serialize(7)) == 7
    with pytest.raises(ValueError, match=r"id 2, and only \[1\]"):
        first.deserialize(second.serialize(7))
    with pytest.raises(ValueError, match="no id of a schema"):
        first.deserialize(b"tea")


def test_source_names_the_message_of_an_unknown_schema() -> None:
    mine = serdes.registered(RegisteredSchema(1, "AVRO", '"string"'))
    other = serdes.registered(RegisteredSchema(2, "AVRO", '"string"'))
    builder = StreamBuilder("job")
    builder.source("in", mine).sink("out", serdes.string)
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(DeserializationError, match="schema with id 2"):
        driver.input("in", other).send("tea")


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/v1/cluster/default/subject/or%20ders"
        self.send_response(200 if known else 404)
        self.end_headers()
        if known:
            record = {"recordId": 16385, "schemaId": 1, "type": "AVRO", "idl": json.dumps(AVRO)}
            self.wfile.write(json.dumps(record).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def registry() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_registry_gives_the_schema_of_a_subject(registry: str) -> None:
    schema = SchemaRegistry(registry).schema("or ders")
    assert schema.record_id == 16385
    serde = serdes.registered(schema)
    assert serde.deserialize(serde.serialize(ORDER)) == ORDER
    assert serde.schema is not None


def test_registry_that_knows_nothing_is_named(registry: str) -> None:
    with pytest.raises(SerializationError, match=r"subject 'nothing'.*404"):
        SchemaRegistry(registry).schema("nothing")
    with pytest.raises(ValueError, match="http or https"):
        SchemaRegistry("file:///etc")
