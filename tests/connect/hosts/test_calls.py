"""Questions to plugins, through processes that live for one question each."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.hosts.control import add_new_places
from headrace.connect.worker import PluginCall, Question, Started
from tests.connect.hosts.running import SOURCE, launched, launcher_in, on_loop


def asked(what: Question, config: dict[str, str] | None = None, **arguments: Any) -> PluginCall:
    texts = {"name": "chaos", "connector.class": SOURCE, **(config or {})}
    return PluginCall(what=what, connector_class=SOURCE, config=texts, arguments=arguments)


@pytest.mark.slow
@pytest.mark.requirement(46)
@pytest.mark.parametrize("body", ["import time; time.sleep(3600)", "import os; os._exit(3)"])
@on_loop
async def test_plugin_that_kills_who_imports_it_does_not_hide_the_others(
    tmp_path: Path, body: str
) -> None:
    plugins = tmp_path / "plugins"
    (plugins / "deadly-1.0.dist-info").mkdir(parents=True)
    (plugins / "deadly-1.0.dist-info" / "METADATA").write_text("Name: deadly\nVersion: 1.0\n")
    (plugins / "deadly-1.0.dist-info" / "entry_points.txt").write_text(
        "[headrace.connect.connectors]\ndeadly = deadly_plugin:Deadly\n"
    )
    (plugins / "deadly_plugin.py").write_text(body)
    async with launcher_in(tmp_path, folders=(str(plugins),), call_timeout=4.0) as launcher:
        answer = await launcher.call(PluginCall(what="plugins"))
        listed = {one["class"]: one for one in answer.value}
        assert "error" in listed["deadly_plugin.Deadly"]
        file = listed["headrace.connect.connectors.file.FileSourceConnector"]
        assert (file["type"], file["version"], "error" in file) == ("source", "1.0", False)
        assert "file-source" in file["aliases"]


@on_loop
async def test_keys_of_a_plugin_are_described(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        answer = await launcher.call(asked("describe"))
        assert {"name", "chaos.poll", "per.poll"} <= {one["name"] for one in answer.value}


@on_loop
async def test_config_is_validated(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        answer = await launcher.call(asked("validate", {"per.poll": "many"}))
        assert answer.value["error_count"] == 1
        wrong = next(one for one in answer.value["configs"] if one["value"]["errors"])
        assert wrong["definition"]["name"] == "per.poll"


@on_loop
async def test_values_from_outside_are_read_in_the_host_alone(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("2\n")
    async with launcher_in(tmp_path) as launcher:
        config = {"chaos.connector.alter_offsets": f"raise: ${{file:{tmp_path / 'number'}}}"}
        answer = await launcher.call(asked("alter_offsets", config, offsets=[]))
        assert answer.failure is not None
        assert "ChaosError: 2" in answer.failure.summary


@on_loop
async def test_offsets_are_looked_at_by_the_connector(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        offsets = [{"partition": {"task": 0}, "offset": {"count": 5}}]
        answer = await launcher.call(asked("alter_offsets", offsets=offsets))
        assert answer.value is True
        refusing = {"chaos.connector.alter_offsets": "raise: not there"}
        answer = await launcher.call(asked("alter_offsets", refusing, offsets=offsets))
        assert answer.failure is not None
        assert "ChaosError: not there" in answer.failure.summary


@pytest.mark.requirement(46)
@on_loop
async def test_plugins_of_modules_are_listed_and_run_by_their_names(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "mine.py").write_text(
        "from headrace.connect.testing.chaos import ChaosSource, ChaosTransform\n"
        "class Mine(ChaosSource): pass\nclass MyTransform(ChaosTransform): pass\n"
    )
    (plugins / "broken.py").write_text("raise OSError('no driver')")
    settings = {"folders": (str(plugins),), "modules": ("mine", "broken")}
    async with launcher_in(tmp_path, **settings) as launcher:
        listed = {
            one["class"]: one
            for one in (await launcher.call(PluginCall(what="plugins"))).value
            if not one["class"].startswith("headrace.")
        }
        assert listed.keys() == {"mine.Mine", "mine.MyTransform", "broken.connectors"}
        assert listed["mine.MyTransform"]["type"] == "transformation"
        assert "OSError: no driver" in listed["broken.connectors"]["error"]
        transform: dict[str, Any] = {"transforms": "my", "transforms_my_type": "MyTransform"}
        _, heard = await launched(launcher, connector_class="Mine", **transform)
        await heard.first(Started)


@on_loop
async def test_class_that_nothing_lists_is_told_of_by_its_full_name(tmp_path: Path) -> None:
    async with launcher_in(tmp_path) as launcher:
        name = "headrace.connect.testing.chaos.ChaosSink"
        answer = await launcher.call(PluginCall(what="plugins", arguments={"only": name}))
        assert [(one["class"], one["type"]) for one in answer.value] == [(name, "sink")]
        answer = await launcher.call(PluginCall(what="plugins", arguments={"only": "no.such"}))
        assert answer.value == []


def test_package_that_is_edited_in_place_is_on_the_path_of_hosts_once_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, place = time.time(), tmp_path / "shop" / "src"
    place.mkdir(parents=True)
    (tmp_path / "shop.pth").write_text(f"{place}\n")
    add_new_places([str(tmp_path)], since=before + 60)
    assert str(place) not in sys.path
    add_new_places([str(tmp_path)], since=before - 60)
    assert sys.path[-1] == str(place)
