"""Plugins are listed, described, asked about configs, and begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.connect.commands import Commands
from tests.cli.connect.test_status import picture


def test_plugins_are_listed_with_why_one_cannot_be_used(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run("plugins") == picture("""
        ┏━━━━━━┳━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
        ┃ name ┃ type   ┃ version ┃ class                     ┃ cannot be used                      ┃
        ┡━━━━━━╇━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
        │      │ sink   │ 1.0     │ fakes.FileSinkConnector   │                                     │
        │      │ source │ 1.0     │ fakes.BrokenConnector     │ ImportError: no module named 'gone' │
        │      │ source │ 1.0     │ fakes.ChaosConnector      │                                     │
        │      │ source │ 1.0     │ fakes.FileSourceConnector │                                     │
        └──────┴────────┴─────────┴───────────────────────────┴─────────────────────────────────────┘
    """)
    assert "fakes.TextConverter" in run("plugins", "--all")
    assert {one["type"] for one in run.data("plugins")} == {"source", "sink"}


def test_keys_of_a_plugin_are_a_table(run: Commands) -> None:
    shown = run("plugins", "file-source")
    (key,) = [line for line in shown.splitlines() if " file " in line]
    assert key.split() == ["│", "file", "│", "string", "│", "required", "│", "│"]
    assert run.data("plugins", "file-source")[0]["name"] == "name"


def test_a_plugin_that_is_not_there_is_guessed(run: Commands) -> None:
    assert run.refused("plugins", "file-sorce").endswith("→ did you mean 'file-source'?")


def test_a_right_config_is_taken(run: Commands) -> None:
    said = run.said("validate", "file-source", "file=a", "--config", "topic=b")
    assert said == "file-source takes this config."


def test_a_wrong_config_is_a_table_of_its_problems(
    run: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run._call(("validate", "file-source", "topic=b", "tasks.max=x"), 1)
    assert out == picture("""
        ┏━━━━━━━━━━━┳━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
        ┃ key       ┃ value ┃ problem                                                   ┃
        ┡━━━━━━━━━━━╇━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
        │ tasks.max │ x     │ the value 'x' of tasks.max must be a whole number above 0 │
        │ file      │       │ the key file is missing                                   │
        └───────────┴───────┴───────────────────────────────────────────────────────────┘
    """)
    assert err == "file-source does not take this config: 2 problems.\n"


def test_a_project_is_written(run: Commands, tmp_path: Path) -> None:
    shown = run("new", "my-shop", "--source", str(tmp_path)).splitlines()
    assert str(tmp_path / "my-shop" / "pyproject.toml") in shown
    assert all(Path(line).is_file() for line in shown)
    assert "There is a" in run.refused("new", "my-shop", "--sink", str(tmp_path))


@pytest.mark.parametrize("options", [(), ("--source", "--sink")])
def test_a_project_is_a_source_or_a_sink(run: Commands, options: tuple[str, ...]) -> None:
    assert "give one of --source and --sink" in run.refused("new", "a", *options)
