from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from headrace.connect import RetriableError, SinkRecord
from headrace.connect.connectors.http import HttpSinkConnector
from headrace.connect.connectors.http.sink import retry_after
from headrace.errors import ConnectorConfigError, SerializationError
from tests.connect.connectors.runs import QUEUE, problems, sink

Answer = tuple[int, dict[str, str]]


@dataclass
class Service:
    """A web service that remembers requests, and answers as a function says."""

    url: str
    answer: Callable[[bytes], Answer] = lambda body: (200, {})
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(body) for _, _, body in self.requests]


@pytest.fixture
def service() -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.requests.append((f"{self.command} {self.path}", headers, body))
            status, more = found.answer(body)
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"said")

        do_PUT = do_POST  # noqa: N815  the base class names it

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Service(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def texts(service: Service, **more: str) -> dict[str, str]:
    quick = {"url": service.url + "/in", "retry.pause.ms": "1", "retry.timeout.ms": "1000"}
    return quick | {name.replace("_", "."): value for name, value in more.items()}


def test_batch_becomes_one_request(service: Service) -> None:
    config = texts(service, auth_token="word", batch_max_records="2") | {
        "request.header.X-From": "us",
        "header.converter": "SimpleHeaderConverter",
    }
    with sink(HttpSinkConnector, config) as run:
        run.put([{"a": 1}, {"a": 2}, {"a": 3}])
        run.commit()
    assert service.bodies == [[{"a": 1}, {"a": 2}], [{"a": 3}]]
    request, headers, _ = service.requests[0]
    assert request == "POST /in"
    assert headers["authorization"] == "Bearer word"
    assert headers["x-from"] == "us"
    assert "converter" not in headers  # header.converter is Connect's own
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == "tested/lines/broker-a/0/0-1"
    assert headers["headrace-last-offset"] == "1"


def test_bodies_have_the_shape_that_was_asked_for(service: Service) -> None:
    with sink(HttpSinkConnector, texts(service, body="lines")) as run:
        run.put([{"a": 1}, "x"])
    assert service.requests[-1][2] == b'{"a":1}\n"x"\n'
    single = texts(service, body="single", method="PUT", url=service.url + "/{topic}/{key}")
    with sink(HttpSinkConnector, single) as run:
        run.put([{"a": 1}], key="k/1")
    assert service.requests[-1][0] == "PUT /lines/k%2F1"
    assert service.requests[-1][2] == b'{"a":1}'


def test_requests_do_not_mix_queues(service: Service) -> None:
    with sink(HttpSinkConnector, texts(service)) as run:
        run.put([1, 2])
        run.put([3], QUEUE._replace(queue_id=1))
    assert service.bodies == [[1, 2], [3]]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_failure_that_may_pass_is_tried_again(service: Service, status: int) -> None:
    answers = iter([(status, {}), (status, {"retry-after": "0"}), (200, {})])
    service.answer = lambda body: next(answers)
    with sink(HttpSinkConnector, texts(service)) as run:
        run.put([1])
    assert service.bodies == [[1]] * 3
    assert len({headers["idempotency-key"] for _, headers, _ in service.requests}) == 1


def test_server_says_when_to_come_again(service: Service) -> None:
    service.answer = lambda body: (503, {"retry-after": "3600"})
    with (
        sink(HttpSinkConnector, texts(service)) as run,
        pytest.raises(RetriableError, match=r"does not succeed: 503 .*said"),
    ):
        run.put([1])
    assert len(service.requests) == 1  # an hour is beyond the budget
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    found = retry_after(later)
    assert found is not None
    assert 95 < found <= 100


@pytest.mark.requirement(45)
def test_same_records_again_have_the_same_name(service: Service) -> None:
    service.answer = lambda body: (503, {})
    with sink(HttpSinkConnector, texts(service, retry_timeout_ms="0")) as run:
        for _ in range(2):
            with pytest.raises(RetriableError):
                run.put([1, 2])
        service.answer = lambda body: (200, {})
        run.put([1, 2])
    assert {headers["idempotency-key"] for _, headers, _ in service.requests} == {
        "tested/lines/broker-a/0/0-1"
    }


def test_records_that_were_taken_are_not_sent_again(service: Service) -> None:
    service.answer = lambda body: (503 if b"2" in body else 200, {})
    config = texts(service, retry_timeout_ms="0", batch_max_records="1")
    records = [SinkRecord(topic="lines", queue=QUEUE, offset=n, value=n) for n in range(4)]
    with sink(HttpSinkConnector, config) as run:
        with pytest.raises(RetriableError):
            run.task.put(records)
        service.answer = lambda body: (200, {})
        run.task.put(records)
    assert service.bodies == [[0], [1], [2], [2], [3]]


def test_server_that_is_not_there_is_tried_again_later(service: Service) -> None:
    config = texts(service, retry_timeout_ms="20") | {"url": "http://127.0.0.1:1/"}
    with (
        sink(HttpSinkConnector, config) as run,
        pytest.raises(RetriableError, match="ConnectError"),
    ):
        run.put([1])


def test_bad_record_is_found_among_good_ones(service: Service) -> None:
    service.answer = lambda body: (422 if b"bad" in body else 200, {})
    with sink(HttpSinkConnector, texts(service), tolerant=True) as run:
        run.put(["a", "b", "bad", "c"])
        run.commit()
        assert [record.value for record, _ in run.reported] == ["bad"]
        assert "answered 422" in str(run.reported[0][1])
    taken = [value for body in service.bodies if "bad" not in body for value in body]
    assert taken == ["a", "b", "c"]


def test_bad_record_fails_the_task_without_tolerance(service: Service) -> None:
    service.answer = lambda body: (400, {})
    with (
        sink(HttpSinkConnector, texts(service)) as run,
        pytest.raises(SerializationError, match="answered 400"),
    ):
        run.put([1])


def test_server_that_refuses_everything_fails_the_task(service: Service) -> None:
    service.answer = lambda body: (403, {})
    with (
        sink(HttpSinkConnector, texts(service), tolerant=True) as run,
        pytest.raises(ConnectorConfigError, match="answered 403"),
    ):
        run.put([1])


def test_config_that_cannot_be_is_named(service: Service) -> None:
    assert "must be a URL" in problems(HttpSinkConnector, {"url": "ftp://x"})[0]
    keyed = texts(service, url="http://x/{key}")
    assert problems(HttpSinkConnector, keyed) == ["A {key} in url needs body=single."]
