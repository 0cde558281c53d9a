"""kafka-connect-py as a black box: each of its commands that Kafka Connect understands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE, config_of
from tests.connect.rest.programs import call
from tests.connect.rest.test_cases import positions_of_fakes
from tests.connect.running import Running, quick_settings, running
from tests.connect.waiting import eventually, states, until_running


@pytest.fixture(scope="module")
def worker() -> Iterator[Running]:
    settings = quick_settings(token="s3cret")
    with running(FakeLauncher, positions_of_fakes, settings=settings) as one:
        one.http.headers["Authorization"] = "Bearer s3cret"
        yield one


def kc(worker: Running, *arguments: str) -> Any:
    """Call kafka-connect-py; its exit status says nothing, its output does."""
    variables = {"KAFKA_CONNECT_URL": worker.url, "KAFKA_CONNECT_BASIC_AUTH": "me:s3cret"}
    done = call("kc", *arguments, variables=variables)
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_a_connector_is_made_changed_looked_after_and_deleted(
    worker: Running, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    config = config_of(FILE_SOURCE, topic="lines", file=str(tmp_path / "in.txt"))
    assert kc(worker, "info")["version"].startswith("3.9.")
    assert FILE_SOURCE in [one["class"] for one in kc(worker, "list-plugins")]
    made = kc(worker, "create", "-d", json.dumps({"name": "a", "config": config}))
    assert (made["name"], made["type"]) == ("a", "source")
    worker.do(until_running(worker.connect, "a"))
    assert kc(worker, "list") == ["a"]
    assert list(kc(worker, "list", "--state", "RUNNING", "--expand", "status")) == ["a"]
    assert kc(worker, "get", "a")["config"]["topic"] == "lines"
    assert kc(worker, "config", "a")["name"] == "a"
    assert kc(worker, "status", "a")["connector"]["state"] == "RUNNING"
    changed = kc(worker, "update", "a", "-d", json.dumps(config | {"x": "1"}))
    assert changed["config"]["x"] == "1"
    worker.do(until_running(worker.connect, "a"))
    kc(worker, "pause", "a")
    assert kc(worker, "status", "a")["tasks"][0]["state"] == "PAUSED"
    kc(worker, "resume", "a")
    assert kc(worker, "restart", "a", "--include-tasks")["name"] == "a"
    worker.do(until_running(worker.connect, "a"))
    assert kc(worker, "list-tasks", "a")[0]["id"] == {"connector": "a", "task": 0}
    assert kc(worker, "task-status", "a", "0")["state"] == "RUNNING"
    kc(worker, "restart-task", "a", "0")

    async def until_used() -> None:
        await eventually(lambda: worker.connect.topics("a") == ["lines"])

    worker.do(until_used())
    assert kc(worker, "list-topics", "a") == {"a": {"topics": ["lines"]}}
    kc(worker, "reset-topics", "a")
    kc(worker, "delete", "a")
    assert kc(worker, "list") == []


def test_all_connectors_of_a_pattern_or_a_state_are_handled_at_once(worker: Running) -> None:
    def states() -> dict[str, str]:
        told = kc(worker, "list", "--expand", "status", "--pattern", "b-.*")
        return {name: one["status"]["connector"]["state"] for name, one in told.items()}

    for name in ("b-1", "b-2"):
        kc(worker, "create", "-d", json.dumps({"name": name, "config": config_of(CHAOS)}))
        worker.do(until_running(worker.connect, name))
    kc(worker, "pause", "--all", "--pattern", "b-.*")
    assert states() == {"b-1": "PAUSED", "b-2": "PAUSED"}
    kc(worker, "resume", "--all", "--state", "paused")
    assert states() == {"b-1": "RUNNING", "b-2": "RUNNING"}
    told = kc(worker, "restart", "--all", "--pattern", "b-.*", "--include-tasks", "--only-failed")
    assert sorted(told) == ["b-1", "b-2"]
    kc(worker, "delete", "--all", "--pattern", "b-.*")
    assert kc(worker, "list") == []


def test_its_library_can_what_its_commands_cannot(worker: Running) -> None:
    from kafka_connect import KafkaConnect

    library = KafkaConnect(worker.url, auth="me:s3cret")
    library.create_connector({"name": "c", "config": config_of(CHAOS)})
    library.stop_all_connectors(pattern="c")

    async def until_stopped() -> None:
        await eventually(lambda: states(worker.connect, "c") == ["STOPPED"])

    worker.do(until_stopped())
    # The command sends the config as a text within JSON, which Kafka Connect refuses too.
    told = library.validate_connector_config(FILE_SOURCE, config_of(FILE_SOURCE, file="in.txt"))
    assert told["error_count"] == 1
    library.delete_connector("c")
