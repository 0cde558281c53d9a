from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from headrace.errors import ProtocolError
from headrace.protocol import groups, routes
from headrace.protocol.routes import JsonBody, MessageQueue, dumps, loads

BODIES = [
    value
    for module in (groups, routes, groups)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, JsonBody) and value is not JsonBody
]


@pytest.mark.parametrize("kind", BODIES)
def test_every_body_is_read_as_written_and_has_defaults(kind: type[JsonBody]) -> None:
    assert loads(b"{}", kind) == kind()
    assert loads(dumps(kind()), kind) == kind()
    assert isinstance(json.loads(dumps(kind())), dict)


@pytest.mark.parametrize("kind", BODIES)
def test_null_members_take_their_defaults(kind: type[JsonBody]) -> None:
    nulls = {field.encode_name: None for field in msgspec.structs.fields(kind)}
    assert loads(json.dumps(nulls), kind) == kind()


@pytest.mark.parametrize("kind", BODIES)
def test_wrong_shape_is_a_protocol_error(kind: type[JsonBody]) -> None:
    for body in (b"[]", b"7", b"", b"\xff", b'"x"'):
        with pytest.raises(ProtocolError):
            loads(body, kind)


def test_error_names_the_body() -> None:
    with pytest.raises(ProtocolError, match=r"TopicConfig.*perm"):
        loads(b'{"perm":"much"}', routes.TopicConfig)


def test_members_that_are_none_are_left_out_at_every_depth() -> None:
    info = routes.ClusterInfo(broker_addr_table={"b": routes.BrokerData(broker_name="b")})
    written = json.loads(dumps({"a": [info, None], "b": None}))
    assert "zoneName" not in written["a"][0]["brokerAddrTable"]["b"]
    assert set(written) == {"a"}


@given(st.text("abc%_|-", max_size=8), st.text(max_size=5), st.integers(-1, 99))
def test_queue_is_read_from_its_key(topic: str, broker: str, queue_id: int) -> None:
    queue = MessageQueue(topic, broker.encode("utf-8", "replace").decode(), queue_id)
    assert MessageQueue.of_key(queue.key) == queue
    assert loads(dumps(queue), MessageQueue) == queue


def test_queues_sort_by_topic_broker_and_id() -> None:
    queues = [MessageQueue("t", "b", 10), MessageQueue("t", "b", 9), MessageQueue("t", "a", 11)]
    assert [queue.queue_id for queue in sorted(queues)] == [11, 9, 10]


def test_plain_json_needs_no_type() -> None:
    assert loads(b"{1:[true]}") == {"1": [True]}
