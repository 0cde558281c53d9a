"""Which plugins a worker knows, and what their names mean."""

from __future__ import annotations

import asyncio

import pytest

from headrace.connect.worker.catalog import PluginDescription, PluginInspector
from headrace.errors import ConnectNotFoundError, ConnectRequestError
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, FAKES, FakePlugin

TWINS = (FakePlugin("a.CutConnector", "source"), FakePlugin("b.CutConnector", "sink"))


def connector(catalog: PluginInspector, name: str) -> PluginDescription:
    return asyncio.run(catalog.connector(name))


def listed(catalog: PluginInspector) -> set[str]:
    return {one.class_name for one in asyncio.run(catalog.plugins())}


def test_what_is_installed_while_it_runs_is_listed_and_asked_for_once() -> None:
    launcher = FakeLauncher()
    catalog = PluginInspector(launcher)
    assert "a.CutConnector" not in listed(catalog)
    launcher.fakes = (*FAKES, TWINS[0])
    launcher.packages += 1
    assert "a.CutConnector" in listed(catalog)
    assert "a.CutConnector" in listed(catalog)
    launcher.fakes = FAKES
    launcher.packages += 1
    assert "a.CutConnector" not in listed(catalog)
    assert launcher.asked("plugins") == 3


@pytest.mark.parametrize("name", ["Cut", "CutConnector"])
def test_name_of_several_plugins_is_refused_with_the_choices(name: str) -> None:
    catalog = PluginInspector(FakeLauncher(fakes=TWINS))
    with pytest.raises(ConnectRequestError, match=r"matches alias Cut.*a\.Cut\w+, b\.Cut"):
        connector(catalog, name)
    with pytest.raises(ConnectRequestError, match="Please use full package and class name"):
        asyncio.run(catalog.plugin(name))
    assert catalog.known(name) is None
    assert [connector(catalog, one.class_name).type for one in TWINS] == ["source", "sink"]


def test_full_name_wins_over_the_same_word_as_another_ones_alias() -> None:
    fakes = (FakePlugin("a.Cut", "source", aliases=("b.Cut",)), FakePlugin("b.Cut", "sink"))
    assert connector(PluginInspector(FakeLauncher(fakes=fakes)), "b.Cut").type == "sink"


def test_full_name_of_a_class_works_though_nothing_lists_it() -> None:
    launcher = FakeLauncher()
    launcher.unlisted = (FakePlugin("shop.Till", "sink"),)
    catalog = PluginInspector(launcher)
    assert connector(catalog, "shop.Till").role == "sink"
    assert connector(catalog, "shop.Till").role == "sink"
    assert launcher.asked("plugins") == 2
    known = catalog.known("shop.Till")
    assert known is not None
    assert known.role == "sink"
    assert "shop.Till" not in listed(catalog)
    for name in ("shop.Tills", "Till"):
        with pytest.raises(
            ConnectNotFoundError,
            match=f"which name matches {name}, available connectors are: fakes.Broken",
        ):
            connector(catalog, name)


def test_every_name_of_a_plugin_means_it() -> None:
    catalog = PluginInspector(FakeLauncher())
    for name in (CHAOS, "ChaosConnector", "Chaos", "chaos"):
        assert connector(catalog, name).class_name == CHAOS
