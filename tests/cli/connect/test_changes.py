"""Connectors are made, restarted, paused, stopped and deleted by commands."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.connect.commands import Commands
from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE
from tests.connect.running import Running
from tests.connect.waiting import eventually, states, until_running


def chaos(run: Commands, worker: Running, name: str, tasks: int = 1) -> None:
    """Make a connector that runs."""
    run("create", name, f"connector.class={CHAOS}", f"tasks.max={tasks}")
    worker.do(until_running(worker.connect, name, tasks))


def config_of(worker: Running, name: str) -> dict[str, str]:
    return worker.connect.info(name).config


def test_a_connector_is_made_of_keys(run: Commands, worker: Running) -> None:
    said = run.said("create", "a", "connector.class=file-source", "file=a=b", "topic=lines")
    assert said == "Connector a (source) is made: its tasks start."
    assert config_of(worker, "a") == {
        "name": "a",
        "connector.class": "file-source",
        "file": "a=b",
        "topic": "lines",
    }


def test_keys_win_over_files_and_later_files_over_earlier(
    run: Commands, worker: Running, tmp_path: Path
) -> None:
    common, own = tmp_path / "common.json", tmp_path / "own.json"
    common.write_text(json.dumps({"connector.class": CHAOS, "x": "1", "y": 1, "z": 1}))
    own.write_text(json.dumps({"name": "a", "config": {"y": "2", "z": True}}))
    run("create", "a", "z=3", "--config", str(common), "--config", str(own))
    config = config_of(worker, "a")
    assert (config["x"], config["y"], config["z"]) == ("1", "2", "3")


def test_a_config_comes_from_standard_input(
    run: Commands, worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"connector.class": CHAOS})))
    run("create", "a", "--config", "-")
    assert config_of(worker, "a")["connector.class"] == CHAOS


@pytest.mark.parametrize(
    "held",
    [
        {"name": "lines", "config": {"connector.class": CHAOS, "x": "1"}},
        {"name": "lines", "connector.class": CHAOS, "x": "1"},
    ],
    ids=["beside the config", "in the config"],
)
def test_the_name_may_stand_in_the_file(
    run: Commands, worker: Running, tmp_path: Path, held: dict[str, Any]
) -> None:
    file = tmp_path / "lines.json"
    file.write_text(json.dumps(held))
    said = run.said("create", "--config", str(file))
    assert said == "Connector lines (source) is made: its tasks start."
    run("create", "x=2", "--config", str(file), "--update")
    assert config_of(worker, "lines")["x"] == "2"
    told = run.refused("create", "others", "--config", str(file))
    assert "lines" in told
    assert "others" in told


def test_a_connector_begins_as_its_file_says_or_the_command(
    run: Commands, worker: Running, tmp_path: Path
) -> None:
    file = tmp_path / "idle.json"
    held = {"name": "idle", "config": {"connector.class": CHAOS}, "initial_state": "STOPPED"}
    file.write_text(json.dumps(held))
    said = run.said("create", "--config", str(file))
    assert said == "Connector idle (source) is made: nothing starts until it is resumed."
    worker.do(eventually(lambda: states(worker.connect, "idle") == ["STOPPED"]))
    said = run.said("create", "other", f"connector.class={CHAOS}", "--initial-state", "paused")
    assert (
        said == "Connector other (source) is made: its tasks start, and rest until it is resumed."
    )
    worker.do(eventually(lambda: states(worker.connect, "other") == ["PAUSED", "PAUSED"]))
    file.write_text(json.dumps(held | {"name": "wrong", "initial_state": "asleep"}))
    told = run.refused("create", "--config", str(file))
    assert "the initial_state is 'asleep'" in told
    assert "use RUNNING" in told


def test_a_connector_that_nobody_names_is_refused(run: Commands) -> None:
    for given in (("connector.class=x",), ("--config", "connector.class=x")):
        told = run.refused("create", *given)
        assert told.startswith("error: the connector has no name\n  → give one before the keys")


def test_a_name_that_is_taken_is_told_how_to_replace_its_config(
    run: Commands, worker: Running
) -> None:
    chaos(run, worker, "a")
    assert run.refused("create", "a", f"connector.class={CHAOS}") == (
        "error: Connector a already exists\n  → --update replaces its config"
    )
    said = run.said("create", "a", "--update", f"connector.class={CHAOS}", "x=2")
    assert said == "Connector a (source) has a new config."
    assert config_of(worker, "a")["x"] == "2"


def test_update_makes_what_is_not_there(run: Commands, worker: Running) -> None:
    said = run.said("create", "a", "--update", f"connector.class={CHAOS}")
    assert said == "Connector a (source) is made: its tasks start."


def test_a_wrong_config_names_each_problem_and_who_describes_the_keys(run: Commands) -> None:
    told = run.refused("create", "a", f"connector.class={FILE_SOURCE}", "topic=x", "tasks.max=no")
    assert "the key file is missing" in told
    assert "the value 'no' of tasks.max must be a whole number above 0" in told
    assert told.endswith(f"→ `headrace connect plugins {FILE_SOURCE}` describes the keys")


def test_a_plugin_that_is_misspelt_is_guessed(run: Commands) -> None:
    told = run.refused("create", "a", "connector.class=file-sorce")
    assert told.startswith("error: Failed to find any class that implements Connector and which")
    assert told.endswith("\n  → did you mean 'file-source'?")


def test_a_config_without_a_class_is_told_the_command_that_lists_them(run: Commands) -> None:
    told = run.refused("create", "a", "topic=x")
    assert told.endswith("→ `headrace connect plugins` lists the classes")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds no config: it is of type list"),
        ('{"name": "b", "config": {}}', "is the config of connector 'b', not of 'a'"),
        ("{}", "no config is given"),
    ],
)
def test_a_file_that_holds_no_config_is_told(
    run: Commands, tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    assert problem in run.refused("create", "a", "--config", str(file))


def test_a_file_that_is_not_there_and_a_key_without_a_value_are_told(run: Commands) -> None:
    assert run.refused("create", "a", "--config", "gone.json") == (
        "error: gone.json cannot be read: No such file or directory"
    )
    assert run.refused("create", "a", "topic").endswith("→ keys of a config are written KEY=VALUE")


def test_a_connector_pauses_goes_on_stops_and_is_deleted(run: Commands, worker: Running) -> None:
    chaos(run, worker, "a")
    for command, said, state in [
        ("pause", "pauses", ["PAUSED", "PAUSED"]),
        ("resume", "goes on", ["RUNNING", "RUNNING"]),
        ("stop", "stops", ["STOPPED"]),
    ]:
        assert run.said(command, "a") == f"Connector a {said}."
        worker.do(eventually(lambda state=state: states(worker.connect, "a") == state))  # type: ignore[misc]
    assert run.said("delete", "a") == "Connector a is deleted."
    assert worker.connect.names() == []


def test_force_kills_without_asking(run: Commands, worker: Running) -> None:
    run("create", "a", f"connector.class={CHAOS}", "chaos.stop=hang")
    worker.do(until_running(worker.connect, "a"))
    run("stop", "a", "--force")
    worker.do(eventually(lambda: states(worker.connect, "a") == ["STOPPED"]))
    units = worker.ask("GET", "/admin/tasks").json()
    (task,) = [unit for unit in units if unit["task"] == 0]
    assert [rung["step"] for rung in task["rungs"]] == ["KILL", "GONE"]


def test_a_restart_says_what_restarts(run: Commands, worker: Running) -> None:
    chaos(run, worker, "a", tasks=2)
    assert run.said("restart", "a") == "Connector a restarts."
    worker.do(until_running(worker.connect, "a", 2))
    said = run.said("restart", "a", "--include-tasks")
    assert said == "These restart: connector a, tasks 0, 1."
    worker.do(until_running(worker.connect, "a", 2))
    assert run.said("restart", "a", "--task", "1") == "Task 1 of connector a restarts."
    worker.do(until_running(worker.connect, "a", 2))
    said = run.said("restart", "a", "--include-tasks", "--only-failed")
    assert said == "Nothing of connector a has failed: nothing restarts."


def test_a_restart_that_cannot_be_says_why(run: Commands, worker: Running) -> None:
    chaos(run, worker, "a")
    told = run.refused("restart", "a", "--task", "0", "--only-failed")
    assert told.endswith("→ leave out --include-tasks and --only-failed")
    assert "Unknown task: a-7" in run.refused("restart", "a", "--task", "7")
    run("stop", "a")
    told = run.refused("restart", "a")
    assert told.endswith("→ resume it instead, by `headrace connect resume`")


def test_a_connector_that_is_misspelt_is_guessed(run: Commands, worker: Running) -> None:
    chaos(run, worker, "lines")
    assert run.refused("pause", "line") == (
        "error: Unknown connector line\n  → did you mean 'lines'?"
    )
    told = run.refused("delete", "orders")
    assert told.endswith("→ `headrace connect list` names those that there are")
