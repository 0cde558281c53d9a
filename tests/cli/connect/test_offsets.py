"""Offsets of connectors are shown, set and forgotten by commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.connect.commands import Commands
from tests.connect.fakes.plugins import FILE_SOURCE
from tests.connect.running import Running
from tests.connect.waiting import eventually, states, until_running


@pytest.fixture
def lines(run: Commands, worker: Running, tmp_path: Path) -> Path:
    """A connector that has read a file of two lines."""
    file = tmp_path / "in.txt"
    file.write_text("one\ntwo\n")
    run("create", "lines", f"connector.class={FILE_SOURCE}", f"file={file}", "topic=t")
    worker.do(until_running(worker.connect, "lines"))
    return file


def stop(run: Commands, worker: Running) -> None:
    run("stop", "lines")
    worker.do(eventually(lambda: states(worker.connect, "lines") == ["STOPPED"]))


def test_offsets_are_shown_set_and_forgotten(
    run: Commands, worker: Running, lines: Path, tmp_path: Path
) -> None:
    while not (found := run.data("offsets", "lines")["offsets"]):
        pass
    assert found[0]["partition"] == {"filename": str(lines)}
    stop(run, worker)
    (shown,) = [line for line in run("offsets", "lines").splitlines() if "position" in line]
    assert "filename" in shown

    changed = tmp_path / "offsets.json"
    changed.write_text(json.dumps({"offsets": [found[0] | {"offset": {"position": 4}}]}))
    said = run.said("offsets", "lines", "--set", str(changed))
    assert said == "The offsets for this connector have been altered successfully."
    assert run.data("offsets", "lines")["offsets"][0]["offset"] == {"position": 4}

    changed.write_text(json.dumps([found[0] | {"offset": {"position": 8}}]))
    run("offsets", "lines", "--set", str(changed))
    assert run.data("offsets", "lines")["offsets"][0]["offset"] == {"position": 8}

    said = run.said("offsets", "lines", "--reset")
    assert said == "The offsets for this connector have been reset successfully."
    assert run.said("offsets", "lines") == "Connector lines has committed nothing yet."


def test_offsets_of_a_connector_that_runs_stay(run: Commands, lines: Path) -> None:
    told = run.refused("offsets", "lines", "--reset")
    assert told.endswith(
        "→ `headrace connect stop lines`, then wait until `headrace connect status lines`"
        " says STOPPED"
    )


def test_setting_and_forgetting_exclude_each_other(run: Commands) -> None:
    told = run.refused("offsets", "lines", "--set", "x.json", "--reset")
    assert "--set and --reset exclude each other" in told
