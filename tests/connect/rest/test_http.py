"""What holds for every request: paths, methods, bodies, who may call, how fast."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.broker.network.listener import make_certificate
from headrace.connect.log import MemoryLog
from headrace.connect.rest import OPERATIONS, RestServer
from headrace.connect.worker import (
    Cause,
    Connect,
    Counted,
    Failed,
    Figures,
    Moved,
    WaitsFor,
)
from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.fakes.plugins import CHAOS, CHAOS_TRANSFORM, FILE_SINK, config_of
from tests.connect.running import Running, make_worker, quick_settings, running
from tests.connect.waiting import eventually, until_running

PROBES = ("/livez", "/readyz", "/health")
ERRORS = {
    "total-record-failures": 9,
    "total-record-errors": 6,
    "total-records-skipped": 5,
    "total-retries": 3,
    "total-errors-logged": 2,
    "deadletterqueue-produce-requests": 4,
    "deadletterqueue-produce-failures": 0,
    "last-error-timestamp": 1_700_000_000_500,
}
_QUEUE = {"rocketmq_topic": "t", "rocketmq_broker": "b", "rocketmq_queue_id": 0}


@pytest.fixture(scope="module")
def worker() -> Iterator[Running]:
    with running(FakeLauncher, positions_of_fakes) as one:
        yield one


@pytest.mark.parametrize("path", ["/connectors/", "/connector-plugins/", "/admin/tasks//"])
def test_a_slash_at_the_end_changes_nothing(worker: Running, path: str) -> None:
    assert worker.ask("GET", path).json() == worker.ask("GET", path.rstrip("/")).json()


@pytest.mark.parametrize("path", ["/", "/connectors", "/health", "/admin/loggers"])
def test_head_answers_as_get_does_without_a_body(worker: Running, path: str) -> None:
    head, get = worker.ask("HEAD", path), worker.ask("GET", path)
    assert (head.status_code, head.content) == (get.status_code, b"")


def test_a_wrong_method_is_told_the_right_ones(worker: Running) -> None:
    answer = worker.ask("DELETE", "/connectors")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, POST, HEAD, OPTIONS"
    assert answer.json()["error_code"] == 405
    assert worker.ask("OPTIONS", "/connectors").headers["Allow"] == answer.headers["Allow"]


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status"),
    [
        ("POST", "/connectors", b"", None, 400),
        ("POST", "/connectors", b"null", "application/json", 400),
        ("POST", "/connectors", b"{}", "application/json", 400),
        ("POST", "/connectors", b'{"name": 1, "config": {}}', "application/json", 400),
        ("POST", "/connectors", b'{"name": "a", "config": {"k": null}}', "application/json", 400),
        ("POST", "/connectors", b'{"name": "a", "config": {}, "x": 1}', "application/json", 400),
        (
            "POST",
            "/connectors",
            b'{"name": "a", "config": {}, "initial_state": "asleep"}',
            "application/json",
            400,
        ),
        ("POST", "/connectors", b"\xff\xfe", "application/json", 400),
        ("POST", "/connectors", b"[" * 100_000, "application/json", 400),
        ("POST", "/connectors", b"{}", "application/x-www-form-urlencoded", 415),
        ("POST", "/connectors", b"{}", None, 415),
        ("PUT", "/connectors/a%25b/config", b'{"connector.class": "x"}', "application/json", 400),
        ("POST", "/connectors/a/restart?includeTasks=perhaps", b"", None, 400),
        ("GET", "/connectors?expand=all", b"", None, 400),
        ("PUT", "/connector-plugins/none/config/validate", b"{}", "application/json", 404),
        ("GET", "/connector-plugins/none/config", b"", None, 404),
    ],
)
def test_what_is_wrong_is_told_with_its_status(
    worker: Running, method: str, path: str, body: bytes, kind: str | None, status: int
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = worker.ask(method, path, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_code"] == status
    assert len(answer.json()["message"]) > 10


def test_a_charset_beside_the_media_type_is_fine(worker: Running) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    body = json.dumps({"name": "charset", "config": config_of(CHAOS)})
    assert worker.ask("POST", "/connectors", content=body, headers=headers).status_code == 201
    assert worker.ask("DELETE", "/connectors/charset").status_code == 204


def test_numbers_keep_their_digits(worker: Running) -> None:
    body = b'{"connector.class": "chaos", "x": 1.10, "y": 12345678901234567890, "z": false}'
    headers = {"Content-Type": "application/json"}
    answer = worker.ask("PUT", "/connectors/digits/config", content=body, headers=headers)
    config = answer.json()["config"]
    assert (config["x"], config["y"], config["z"]) == ("1.10", "12345678901234567890", "false")
    worker.ask("DELETE", "/connectors/digits")


def test_a_config_that_is_too_large_is_refused(worker: Running) -> None:
    config = config_of(CHAOS, x="y" * (5 << 20))
    answer = worker.ask("PUT", "/connectors/large/config", json=config)
    assert answer.status_code == 400
    assert worker.ask("GET", "/connectors/large").status_code == 404
    answer = worker.ask("PUT", "/connectors/large/config", json={"x": "y" * (9 << 20)})
    assert answer.status_code == 413


@pytest.mark.requirement(51)
def test_every_connector_and_task_has_a_state_and_a_worker(worker: Running) -> None:
    assert worker.ask(
        "PUT", "/connectors/seen/config", json=config_of(CHAOS, tasks_max="2")
    ).is_success
    worker.do(until_running(worker.connect, "seen", tasks=2))
    status = worker.ask("GET", "/connectors/seen/status").json()
    assert status["connector"] == {"state": "RUNNING", "worker_id": "w1", "version": "1.0"}
    assert [task["id"] for task in status["tasks"]] == [0, 1]
    units = [one for one in worker.ask("GET", "/admin/tasks").json() if one["connector"] == "seen"]
    assert [(one["task"], one["phase"], one["pid_alive"]) for one in units] == [
        (None, "RUNNING", True),
        (0, "RUNNING", True),
        (1, "RUNNING", True),
    ]
    worker.ask("DELETE", "/connectors/seen")


def test_other_plugins_describe_their_keys_too(worker: Running) -> None:
    for plugin in (CHAOS_TRANSFORM, "fakes.TextConverter", "ChaosTransform"):
        keys = worker.ask("GET", f"/connector-plugins/{plugin}/config").json()
        assert "name" in keys[0]
    assert worker.ask("GET", "/connector-plugins/connector.class/config").status_code == 404


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"partition": {"kafka_topic": "t"}, "offset": None}, "no rocketmq_topic"),
        ({"partition": _QUEUE | {"rocketmq_queue_id": "0"}, "offset": None}, "queue_id .* '0'"),
        ({"partition": _QUEUE | {"x": 0}, "offset": None}, "unknown key x"),
        ({"partition": _QUEUE, "offset": {"kafka_offset": 1}}, "no rocketmq_queue_offset"),
        ({"partition": _QUEUE, "offset": {"rocketmq_queue_offset": -1}}, "offset is -1"),
        ({"partition": _QUEUE, "offset": {"rocketmq_queue_offset": True}}, "offset .* True"),
    ],
)
def test_an_offset_of_a_sink_that_names_no_place_in_a_queue_is_refused(
    worker: Running, entry: dict[str, Any], says: str
) -> None:
    body = {"name": "sink", "config": config_of(FILE_SINK, file="out.txt", topics="t")}
    worker.ask("POST", "/connectors", json=body | {"initial_state": "stopped"})
    answer = worker.ask("PATCH", "/connectors/sink/offsets", json={"offsets": [entry]})
    assert answer.status_code == 400
    assert re.search(says, answer.json()["message"])
    worker.ask("DELETE", "/connectors/sink")


def test_metrics_count_connectors_tasks_and_requests(worker: Running) -> None:
    worker.ask("PUT", "/connectors/counted/config", json=config_of(CHAOS))
    worker.do(until_running(worker.connect, "counted"))
    text = worker.ask("GET", "/metrics").text
    assert 'headrace_connect_connectors{state="RUNNING",type="source"} 1.0' in text
    assert 'headrace_connect_tasks{state="RUNNING",type="source"} 1.0' in text
    assert 'headrace_connect_units{kind="task",phase="RUNNING"} 1.0' in text
    assert "headrace_connect_up 1.0" in text
    assert 'path="/connectors/{connector}/config"' in text
    worker.ask("DELETE", "/connectors/counted")


def test_metrics_tasks_and_the_log_tell_what_was_moved_and_what_is_waited_for(
    worker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    worker.ask("PUT", "/connectors/moved/config", json=config_of(CHAOS))
    worker.do(until_running(worker.connect, "moved"))
    launcher: Any = worker.launcher
    (host,) = launcher.alive("moved", 0)

    async def tell() -> None:
        host.tell(Moved(Figures(records=70, bytes=900, written=3, commits=7, rollbacks=1, lag=5)))
        host.tell(Counted(ERRORS))
        host.tell(WaitsFor("the database is away"))

    worker.do(tell())
    assert "task moved-0 waits for the database is away" in caplog.messages
    text = worker.ask("GET", "/metrics").text
    labels = '{connector="moved",task="0"}'
    for name, figure in {
        "records_total": 70,
        "bytes_total": 900,
        "written_total": 3,
        "commits_total": 7,
        "rollbacks_total": 1,
        "lag": 5,
        "waits": 1,
    }.items():
        assert f"headrace_connect_task_{name}{labels} {figure}.0" in text
    for name, figure in {
        "record_failures_total": 9,
        "record_errors_total": 6,
        "records_skipped_total": 5,
        "retries_total": 3,
        "errors_logged_total": 2,
        "deadletterqueue_produce_requests_total": 4,
        "deadletterqueue_produce_failures_total": 0,
    }.items():
        assert f"headrace_connect_task_{name}{labels} {figure}.0" in text
    assert f"headrace_connect_task_last_error_timestamp_seconds{labels} 1.7000000005e+09" in text
    units = worker.ask("GET", "/admin/tasks").json()
    (task,) = [one for one in units if (one["connector"], one["task"]) == ("moved", 0)]
    assert task["figures"]["records"] == 70
    assert task["errors"] == ERRORS
    worker.ask("DELETE", "/connectors/moved")


def test_metrics_tell_what_failed_in_a_task_that_has_ended_by_it(worker: Running) -> None:
    worker.ask("PUT", "/connectors/bad/config", json=config_of(CHAOS))
    worker.do(until_running(worker.connect, "bad"))
    launcher: Any = worker.launcher
    (host,) = launcher.alive("bad", 0)

    async def fail() -> None:
        host.tell(Counted(ERRORS))
        host.tell(Failed(Cause("a record is bad")))
        host.die(1)
        await eventually(lambda: worker.connect.status("bad").tasks[0].state == "FAILED")

    worker.do(fail())
    told = 'headrace_connect_task_record_errors_total{connector="bad",task="0"} 6.0'
    assert told in worker.ask("GET", "/metrics").text
    worker.ask("DELETE", "/connectors/bad")
    assert told not in worker.ask("GET", "/metrics").text


def test_the_description_names_every_operation(worker: Running) -> None:
    described = worker.ask("GET", "/openapi.json").json()
    named = {
        (method.upper(), path) for path, methods in described["paths"].items() for method in methods
    }
    assert named == {(one.method, one.path) for one in OPERATIONS}
    ids = [
        one["operationId"] for methods in described["paths"].values() for one in methods.values()
    ]
    assert len(set(ids)) == len(ids)
    text = json.dumps(described)
    for name in set(_refs(text)):
        assert name in described["components"]["schemas"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
@pytest.mark.parametrize("word", ["nothing", "0", "ä b", "%2e%2e", "x" * 300])
def test_an_operation_answers_only_with_statuses_that_it_names(
    worker: Running, operation: Any, word: str
) -> None:
    path = operation.path
    for part in ("connector", "task", "plugin", "logger"):
        path = path.replace(f"{{{part}}}", word)
    bodies: list[Any] = [None] if operation.body is None else [None, {}, [], {"a": 1}, {"a": {}}]
    named = {operation.status, *operation.also, *operation.errors}
    for body in bodies:
        for query in ({}, {one.name: "maybe" for one in operation.query}):
            answer = worker.ask(operation.method, path, json=body, params=query)
            assert answer.status_code in named | {404}, (answer.status_code, answer.text)
            assert answer.status_code != 500, answer.text


def _refs(text: str) -> Iterator[str]:
    for part in text.split('"#/components/schemas/')[1:]:
        yield part.partition('"')[0]


def test_an_answer_is_not_held_back_until_the_client_acknowledges_its_beginning(
    worker: Running,
) -> None:
    with httpx.Client(base_url=worker.url) as client:
        for _ in range(5):
            client.get("/connectors")
        quickest = min(client.get("/connectors").elapsed for _ in range(20))
    # Held back, each would take the 40 ms of a delayed acknowledgement.
    assert quickest < timedelta(milliseconds=30)


@pytest.mark.requirement(25)
@pytest.mark.requirement(27)
def test_rest_answers_at_once_while_everything_hangs(worker: Running) -> None:
    hanging = {
        "start": config_of(CHAOS, chaos_start="hang"),
        "connector": config_of(CHAOS, chaos_connector_start="hang"),
        "stop": config_of(CHAOS, chaos_stop="hang"),
        "tasks": config_of(CHAOS) | {"chaos.task_configs": "hang"},
    }
    worker.took.clear()
    for name, config in hanging.items():
        assert worker.ask("PUT", f"/connectors/hang-{name}/config", json=config).is_success
    worker.do(until_running(worker.connect, "hang-stop"))
    worker.ask("PUT", "/connectors/hang-stop/stop")
    for _ in range(20):
        for path in (
            "/connectors?expand=status&expand=info",
            "/admin/tasks",
            "/metrics",
            "/health",
        ):
            assert worker.ask("GET", path).is_success
    for name in hanging:
        assert worker.ask("DELETE", f"/connectors/hang-{name}").status_code == 204
    # The machine of the tests may be busy: nearly all must be quick, and none may wait for a rung.
    took = sorted(worker.took)
    assert took[len(took) * 9 // 10][0] < 0.5, took[-5:]

    async def until_gone() -> None:
        await eventually(lambda: not worker.connect.worker.statistics().copies)

    worker.do(until_gone())


def test_pages_of_other_origins_may_call_where_they_are_named() -> None:
    settings = quick_settings(cors_origins=("http://ui.example",))
    with running(FakeLauncher, positions_of_fakes, settings=settings) as worker:
        origin = {"Origin": "http://ui.example"}
        answer = worker.ask("GET", "/connectors", headers=origin)
        assert answer.headers["Access-Control-Allow-Origin"] == "http://ui.example"
        asked = origin | {"Access-Control-Request-Method": "PUT"}
        assert worker.ask("OPTIONS", "/connectors/a/config", headers=asked).status_code == 200
        other = worker.ask("GET", "/connectors", headers={"Origin": "http://other.example"})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_with_a_token_only_those_who_have_it_are_answered() -> None:
    settings = quick_settings(token="s3cret")
    with running(FakeLauncher, positions_of_fakes, settings=settings) as worker:
        refused = worker.ask("GET", "/connectors")
        assert refused.status_code == 401
        assert refused.json()["error_code"] == 401
        assert [worker.ask("GET", path).status_code for path in PROBES] == [200, 200, 200]
        bearer = {"Authorization": "Bearer s3cret"}
        assert worker.ask("GET", "/connectors", headers=bearer).status_code == 200
        assert worker.ask("GET", "/connectors", auth=("me", "s3cret")).status_code == 200
        assert worker.ask("GET", "/connectors", auth=("me", "wrong")).status_code == 401
        wrong = {"Authorization": "Basic %%%"}
        assert worker.ask("GET", "/connectors", headers=wrong).status_code == 401
        assert "s3cret" not in repr(settings)


def test_with_a_certificate_rest_speaks_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, ["127.0.0.1"])
    settings = quick_settings(tls_certificate=certificate, tls_key=key)
    with running(FakeLauncher, positions_of_fakes, settings=settings) as worker:
        assert worker.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{worker.url}/connectors", verify=trusted).json() == []


def test_probes_are_answered_in_words_before_there_is_a_worker_and_after() -> None:
    async def scenario() -> None:
        settings = quick_settings(token="s3cret")
        launcher = FakeLauncher()
        async with RestServer(settings) as server, httpx.AsyncClient(base_url=server.url) as http:
            server.startup.step("starts Spark")
            assert (await http.get("/livez")).status_code == 200
            for path in ("/readyz", "/health"):
                answer = await http.get(path)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
                assert answer.json()["status"] == "starting"
                assert "Worker w1 starts Spark, for 0 s" in answer.json()["message"]
            assert (await http.get("/connectors")).status_code == 401
            http.headers["Authorization"] = "Bearer s3cret"
            for method in ("GET", "POST"):
                answer = await http.request(method, "/connectors")
                assert (answer.status_code, answer.json()["error_code"]) == (503, 503)
                assert "starts Spark" in answer.json()["message"]
            worker = make_worker(MemoryLog(), launcher, settings, server.startup)
            server.serve(Connect(worker))
            worker.startup.step("reads its log")
            answer = await http.get("/readyz")
            assert (answer.status_code, "reads its log" in answer.text) == (503, True)
            await worker.start()
            assert [(await http.get(path)).status_code for path in PROBES] == [200, 200, 200]
            worker.end_by(OSError("no disk"))
            found = [await http.get(path) for path in PROBES]
            assert [answer.status_code for answer in found] == [500, 503, 500]
            assert all("no disk" in answer.text for answer in found)
            await worker.stop(force=True)
            server.rest()
            found = [await http.get(path) for path in PROBES]
            assert [answer.status_code for answer in found] == [200, 503, 503]
            assert found[1].json()["status"] == "stopping"

    asyncio.run(scenario())


@pytest.mark.requirement(50)
def test_a_worker_that_ends_tells_its_state_and_takes_no_changes() -> None:
    settings = quick_settings(graceful_timeout="2 s")
    with running(FakeLauncher, positions_of_fakes, settings=settings) as worker:
        worker.ask("PUT", "/connectors/a/config", json=config_of(CHAOS, chaos_stop="hang"))
        worker.do(until_running(worker.connect, "a"))

        async def begin_to_stop() -> Any:
            stopping = asyncio.ensure_future(worker.connect.worker.stop())
            await asyncio.sleep(0.05)
            return stopping

        worker.do(begin_to_stop())
        refused = worker.ask("PUT", "/connectors/b/config", json=config_of(CHAOS))
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        assert worker.ask("GET", "/health").json()["status"] == "stopping"
        assert worker.ask("GET", "/connectors").json() == ["a"]
