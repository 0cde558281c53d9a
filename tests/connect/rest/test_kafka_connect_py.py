"""kafka-connect-py as a black box: each of its commands that Kafka Connect understands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE, config_of
from tests.connect.rest.programs import call
from tests.connect.running import Running
from tests.connect.waiting import eventually, states, until_running


def kc(guarded: Running, *arguments: str) -> Any:
    """Call kafka-connect-py; its exit status says nothing, its output does."""
    variables = {"KAFKA_CONNECT_URL": guarded.url, "KAFKA_CONNECT_BASIC_AUTH": "me:s3cret"}
    done = call("kc", *arguments, variables=variables)
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_a_connector_is_made_changed_looked_after_and_deleted(
    guarded: Running, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    config = config_of(FILE_SOURCE, topic="lines", file=str(tmp_path / "in.txt"))
    assert kc(guarded, "info")["version"].startswith("3.9.")
    assert FILE_SOURCE in [one["class"] for one in kc(guarded, "list-plugins")]
    made = kc(guarded, "create", "-d", json.dumps({"name": "a", "config": config}))
    assert (made["name"], made["type"]) == ("a", "source")
    guarded.do(until_running(guarded.connect, "a"))
    assert kc(guarded, "list") == ["a"]
    assert list(kc(guarded, "list", "--state", "RUNNING", "--expand", "status")) == ["a"]
    assert kc(guarded, "get", "a")["config"]["topic"] == "lines"
    assert kc(guarded, "config", "a")["name"] == "a"
    assert kc(guarded, "status", "a")["connector"]["state"] == "RUNNING"
    changed = kc(guarded, "update", "a", "-d", json.dumps(config | {"x": "1"}))
    assert changed["config"]["x"] == "1"
    guarded.do(until_running(guarded.connect, "a"))
    kc(guarded, "pause", "a")
    assert kc(guarded, "status", "a")["tasks"][0]["state"] == "PAUSED"
    kc(guarded, "resume", "a")
    assert kc(guarded, "restart", "a", "--include-tasks")["name"] == "a"
    guarded.do(until_running(guarded.connect, "a"))
    assert kc(guarded, "list-tasks", "a")[0]["id"] == {"connector": "a", "task": 0}
    assert kc(guarded, "task-status", "a", "0")["state"] == "RUNNING"
    kc(guarded, "restart-task", "a", "0")

    async def until_used() -> None:
        await eventually(lambda: guarded.connect.topics("a") == ["lines"])

    guarded.do(until_used())
    assert kc(guarded, "list-topics", "a") == {"a": {"topics": ["lines"]}}
    kc(guarded, "reset-topics", "a")
    kc(guarded, "delete", "a")
    assert kc(guarded, "list") == []


@pytest.mark.slow
def test_all_connectors_of_a_pattern_or_a_state_are_handled_at_once(guarded: Running) -> None:
    def states() -> dict[str, str]:
        told = kc(guarded, "list", "--expand", "status", "--pattern", "b-.*")
        return {name: one["status"]["connector"]["state"] for name, one in told.items()}

    for name in ("b-1", "b-2"):
        kc(guarded, "create", "-d", json.dumps({"name": name, "config": config_of(CHAOS)}))
        guarded.do(until_running(guarded.connect, name))
    kc(guarded, "pause", "--all", "--pattern", "b-.*")
    assert states() == {"b-1": "PAUSED", "b-2": "PAUSED"}
    kc(guarded, "resume", "--all", "--state", "paused")
    assert states() == {"b-1": "RUNNING", "b-2": "RUNNING"}
    told = kc(guarded, "restart", "--all", "--pattern", "b-.*", "--include-tasks", "--only-failed")
    assert sorted(told) == ["b-1", "b-2"]
    kc(guarded, "delete", "--all", "--pattern", "b-.*")
    assert kc(guarded, "list") == []


def test_its_library_can_what_its_commands_cannot(guarded: Running) -> None:
    from kafka_connect import KafkaConnect  # type: ignore[import-untyped]

    library = KafkaConnect(guarded.url, auth="me:s3cret")
    library.create_connector({"name": "c", "config": config_of(CHAOS)})
    library.stop_all_connectors(pattern="c")

    async def until_stopped() -> None:
        await eventually(lambda: states(guarded.connect, "c") == ["STOPPED"])

    guarded.do(until_stopped())
    # The command sends the config as a text within JSON, which Kafka Connect refuses too.
    told = library.validate_connector_config(FILE_SOURCE, config_of(FILE_SOURCE, file="in.txt"))
    assert told["error_count"] == 1
    library.delete_connector("c")
