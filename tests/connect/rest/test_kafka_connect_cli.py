"""kafka-connect-cli as a black box: each of its commands, on a worker that wants a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE, config_of
from tests.connect.rest.programs import call
from tests.connect.running import Running
from tests.connect.waiting import eventually, until_running


class Cli:
    """The program, with its status and what it wrote."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("://", "://me:s3cret@")

    def status(self, *command: str, given: str = "") -> tuple[int, str]:
        done = call("kafka_connect", *command, "--url", self._url, given=given)
        return done.returncode, done.stdout

    def do(self, *command: str, given: str = "") -> Any:
        status, text = self.status(*command, given=given)
        assert status == 0, text
        return json.loads(text) if text.strip() else None


@pytest.fixture
def cli(guarded: Running) -> Cli:
    return Cli(guarded.url)


def _is(name: str, state: str, failed: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"connector": name, "state": state, "failedTasks": list(failed)}


def test_a_connector_is_made_changed_looked_after_and_deleted(
    cli: Cli, guarded: Running, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\n")
    config = config_of(FILE_SOURCE, topic="lines", file=str(tmp_path / "in.txt"))
    named = ("--name", "a")
    made = cli.do("connector", "create", *named, "--configuration", json.dumps(config))
    assert (made["name"], made["config"]["topic"]) == ("a", "lines")
    guarded.do(until_running(guarded.connect, "a"))
    assert cli.do("connector", "list") == [_is("a", "RUNNING")]
    assert cli.do("connector", "get", *named) == _is("a", "RUNNING")
    assert cli.do("connector", "configuration", *named) == config | {"name": "a"}

    file = tmp_path / "config.json"
    file.write_text(json.dumps(config | {"topic": "rows"}))
    changed = cli.do("connector", "update", *named, "--configuration-file", str(file))
    assert changed["config"]["topic"] == "rows"
    guarded.do(until_running(guarded.connect, "a"))

    cli.do("connector", "pause", *named)
    assert cli.do("connector", "get", *named) == _is("a", "PAUSED")
    cli.do("connector", "resume", *named)
    cli.do("connector", "restart", *named)
    guarded.do(until_running(guarded.connect, "a"))
    running_task = [{"taskId": 0, "state": "RUNNING", "trace": ""}]
    assert cli.do("task", "list", "--connector", "a") == running_task
    cli.do("task", "restart", "--connector", "a", "--task", "0")
    guarded.do(until_running(guarded.connect, "a"))
    cli.do("connector", "delete", *named)
    assert cli.do("connector", "list") == []


@pytest.mark.slow
def test_all_connectors_or_those_of_a_pattern_are_paused_resumed_and_deleted(
    cli: Cli, guarded: Running
) -> None:
    for name in ("b-1", "b-2", "c"):
        text = json.dumps(config_of(CHAOS))
        cli.do("connector", "create", "--name", name, "--configuration-file", "-", given=text)
        guarded.do(until_running(guarded.connect, name))
    cli.do("connector", "pause-all", "--name", "b-.*")
    states = {one["connector"]: one["state"] for one in cli.do("connector", "list")}
    assert states == {"b-1": "PAUSED", "b-2": "PAUSED", "c": "RUNNING"}
    cli.do("connector", "resume-all")
    states = {one["connector"]: one["state"] for one in cli.do("connector", "list")}
    assert set(states.values()) == {"RUNNING"}
    cli.do("connector", "delete-all", "--name", "b-.*")
    assert [one["connector"] for one in cli.do("connector", "list")] == ["c"]
    cli.do("connector", "delete-all")
    assert cli.do("connector", "list") == []


def test_a_name_that_is_taken_is_made_once(cli: Cli, guarded: Running) -> None:
    create = ("connector", "create", "--name", "d", "--configuration", json.dumps(config_of(CHAOS)))
    cli.do(*create)
    assert cli.do(*create, "--if-not-exists") is None
    assert cli.status(*create) == (1, "Error: Connector d already exists\n")
    cli.do("connector", "delete", "--name", "d")


def test_what_goes_wrong_is_told_in_words(cli: Cli) -> None:
    status, text = cli.status("connector", "get", "--name", "nope")
    assert status == 1
    assert "response status: 404" in text
    assert "No status found for connector nope" in text
    wrong = json.dumps({"connector.class": "Nothing"})
    status, text = cli.status("connector", "create", "--name", "e", "--configuration", wrong)
    assert status == 1
    assert "response status: 400" in text
    assert "which name matches Nothing" in text


@pytest.mark.slow
def test_the_health_check_is_0_while_all_is_well_and_1_while_a_task_has_failed(
    cli: Cli, guarded: Running
) -> None:
    assert cli.status("health-check") == (0, "")
    config = config_of(CHAOS, chaos_start="raise")
    cli.do("connector", "create", "--name", "f", "--configuration", json.dumps(config))

    async def until_failed() -> None:
        await eventually(lambda: guarded.connect.status("f").tasks[0].state == "FAILED")

    guarded.do(until_failed())
    assert cli.do("connector", "get", "--name", "f") == _is("f", "FAILED", failed=(0,))
    assert cli.status("health-check", "--verbose") == (
        1,
        "Connector f in state RUNNING\nTask 0 of connector f in state FAILED\n",
    )
    cli.do("connector", "delete", "--name", "f")
    assert cli.status("health-check") == (0, "")
    assert Cli("http://127.0.0.1:9").status("health-check")[0] == 2
