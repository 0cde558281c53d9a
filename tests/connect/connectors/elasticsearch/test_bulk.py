"""What is sent again, what is reported, what ends the task: against a server that is a function."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from headrace.connect import RetriableError
from headrace.connect.connectors.elasticsearch.sink import Bulk, DocumentOperation, Operations
from headrace.connect.connectors.http.sink import RefusedError, Retries
from headrace.errors import ConnectorConfigError
from tests.connect.connectors.sinks import record

Item = dict[str, Any]


class Cluster:
    """Answers requests by a function of each document's number and of how often it was sent."""

    def __init__(self, answer: Callable[[int, int], int] = lambda number, times: 200) -> None:
        self.answer = answer
        self.requests: list[list[int]] = []
        self.times: Counter[int] = Counter()
        self.reported: list[tuple[int, BaseException]] = []
        self.whole: Callable[[httpx.Request], httpx.Response | None] = lambda request: None

    def handle(self, request: httpx.Request) -> httpx.Response:
        if (answer := self.whole(request)) is not None:
            return answer
        numbers = [orjson.loads(line)["n"] for line in request.content.splitlines()[1::2]]
        self.requests.append(numbers)
        items = [self._item(number) for number in numbers]
        errors = any("error" in item["index"] for item in items)
        return httpx.Response(200, json={"errors": errors, "items": items})

    def _item(self, number: int) -> Item:
        self.times[number] += 1
        status = self.answer(number, self.times[number])
        error = {"type": f"kind_{status}", "reason": "why", "caused_by": {"reason": "deep"}}
        return {"index": {"status": status, **({} if status < 300 else {"error": error})}}

    def send(self, *numbers: int, keys: str = "", budget: float = 60, **limits: int) -> None:
        client = httpx.Client(transport=httpx.MockTransport(self.handle))
        operations = Operations(id="key")
        made: list[DocumentOperation] = []
        for place, number in enumerate(numbers):
            key = keys[place] if keys else f"k{number}"
            one = operations.of(record(number, {"n": number}, key))
            assert one is not None
            made.append(one)
        with client:
            Bulk(
                client,
                "http://cluster/_bulk",
                Retries(0.001, 0.001, budget),
                stopping=threading.Event(),
                report=lambda one, error: self.reported.append((one.offset, error)),
                **limits,
            ).send(made)


def test_requests_are_no_larger_than_asked_for() -> None:
    cluster = Cluster()
    cluster.send(*range(5), most_records=2)
    cluster.send(7, 8, most_bytes=1)
    assert cluster.requests == [[0, 1], [2, 3], [4], [7], [8]]
    cluster.send()
    assert len(cluster.requests) == 5


@pytest.mark.parametrize("status", [429, 503])
def test_document_that_has_no_room_now_is_sent_again_alone(status: int) -> None:
    cluster = Cluster(lambda number, times: status if number == 1 and times < 3 else 201)
    cluster.send(0, 1, 2)
    assert cluster.requests == [[0, 1, 2], [1], [1]]


def test_later_states_of_a_document_stay_later() -> None:
    cluster = Cluster(lambda number, times: 429 if number == 0 and times == 1 else 200)
    cluster.send(0, 1, 2, 3, keys="abab")
    assert cluster.requests == [[0, 1, 2, 3], [0, 2]]


def test_bad_document_is_reported_and_the_others_are_written() -> None:
    cluster = Cluster(lambda number, times: 400 if number == 1 else 200)
    cluster.send(0, 1, 2)
    [(offset, error)] = cluster.reported
    assert offset == 1
    assert isinstance(error, RefusedError)
    assert "Document k1 of index orders was refused: 400 kind_400: why (deep)" in error.message
    assert cluster.requests == [[0, 1, 2]]


def test_document_that_is_there_is_done() -> None:
    cluster = Cluster(lambda number, times: 409)
    cluster.send(0)
    assert (cluster.requests, cluster.reported) == ([[0]], [])


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_no_record_can_mend_ends_the_task(status: int) -> None:
    cluster = Cluster(lambda number, times: status)
    with pytest.raises(ConnectorConfigError, match="was refused"):
        cluster.send(0)


def test_blocked_index_is_waited_for() -> None:
    cluster = Cluster(lambda number, times: 403 if times < 3 else 200)
    plain = cluster._item

    def blocked(number: int) -> Item:
        item = plain(number)
        if "error" in item["index"]:
            item["index"]["error"]["type"] = "cluster_block_exception"
        return item

    cluster._item = blocked  # type: ignore[method-assign]
    cluster.send(0)
    assert cluster.requests == [[0]] * 3


def test_patience_ends() -> None:
    cluster = Cluster(lambda number, times: 429)
    with pytest.raises(RetriableError, match="with 1 operations does not succeed: 429"):
        cluster.send(0, budget=0.05)
    assert cluster.times[0] > 1


def test_server_that_is_away_is_tried_again() -> None:
    cluster = Cluster()
    answers = iter([httpx.Response(503), httpx.Response(429, headers={"retry-after": "0"})])

    def whole(request: httpx.Request) -> httpx.Response | None:
        if not cluster.times["away"]:  # type: ignore[index]
            cluster.times["away"] += 1  # type: ignore[index]
            raise httpx.ConnectError("away")
        return next(answers, None)

    cluster.whole = whole
    cluster.send(0, 1)
    assert cluster.requests == [[0, 1]]


def test_request_that_is_too_large_is_halved() -> None:
    cluster = Cluster(lambda number, times: 429 if number == 1 and times == 1 else 200)

    def whole(request: httpx.Request) -> httpx.Response | None:
        documents = request.content.splitlines()[1::2]
        too_large = len(documents) > 2 or any(b'"n":3' in one for one in documents)
        return httpx.Response(413, text="too large") if too_large else None

    cluster.whole = whole
    cluster.send(0, 1, 2, 3, 4, keys="abbcb")
    assert cluster.requests == [[0, 1], [1], [2, 4]]
    assert [offset for offset, _ in cluster.reported] == [3]
