"""The catalog finds plugins by whole names, and contains those that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.connect.plugins.builtin import BUILTIN, Builtin
from headrace.connect.plugins.catalog import Catalog, Plugin, packages_in
from headrace.errors import PluginError
from tests.connect.plugins.conftest import SAMPLES


@pytest.mark.parametrize(
    "name",
    [
        f"{SAMPLES}.NumbersSourceConnector",
        f"{SAMPLES}:NumbersSourceConnector",
        "NumbersSourceConnector",
        "NumbersSource",
        "numbers-source",
    ],
)
def test_connector_is_found_by_each_of_its_names(catalog: Catalog, name: str) -> None:
    assert catalog.load(name, "connectors").version == "2.1"


@pytest.mark.parametrize("name", ["org.example.Shout$Value", "Shout$Value", "Shout"])
def test_name_of_a_nested_class_is_found_with_and_without_its_package(
    catalog: Catalog, name: str
) -> None:
    assert catalog.find(name, "transforms").target == f"{SAMPLES}:Shout"


def test_kafka_connects_names_of_the_usual_plugins_are_found() -> None:
    catalog = Catalog.installed()
    for family, names in {
        "connectors": ["FileStreamSource", "FileStreamSink", "FileStreamSourceConnector"],
        "converters": ["org.apache.kafka.connect.json.JsonConverter", "ByteArray", "String"],
        "transforms": ["InsertField$Value", "org.apache.kafka.connect.transforms.Cast$Key"],
        "predicates": ["org.apache.kafka.connect.transforms.predicates.TopicNameMatches"],
    }.items():
        for name in names:
            assert catalog.load(name, family).__doc__


@pytest.mark.defect(9)
def test_names_are_compared_whole(catalog: Catalog) -> None:
    with pytest.raises(PluginError, match="no plugin 'Shou'"):
        catalog.find("Shou", "transforms")
    assert catalog.find("ShoutMore", "transforms").target.endswith(":ShoutMore")


def test_unknown_name_is_answered_with_a_near_one(catalog: Catalog) -> None:
    with pytest.raises(PluginError, match="did you mean 'NumbersSource"):
        catalog.find("NumberSource", "connectors")


@pytest.mark.parametrize(
    "name",
    [
        "directory-sink",
        "S3SinkConnector",
        "headrace.connect.connectors.storage.DirectorySinkConnector",
    ],
)
def test_name_of_a_plugin_that_was_replaced_is_answered_with_what_to_write(name: str) -> None:
    with pytest.raises(PluginError, match=r"it is files-sink now: .* key uri, .* s3://bucket"):
        Catalog.installed().find(name, "connectors")


def test_class_without_an_entry_point_is_found_by_its_full_name() -> None:
    assert Catalog([]).load(f"{SAMPLES}.IsLoud", "predicates").__name__ == "IsLoud"
    with pytest.raises(PluginError, match=r"no plugin 'No\.Such'"):
        Catalog([]).find("No.Such", "connectors")


def test_name_of_several_plugins_is_refused_with_all_of_them() -> None:
    twins = Catalog([Plugin("a.b:Cut", "transforms"), Plugin("c.d:Cut", "transforms")])
    with pytest.raises(PluginError, match=r"a\.b\.Cut, c\.d\.Cut"):
        twins.find("Cut", "transforms")
    assert twins.find("a.b.Cut", "transforms").target == "a.b:Cut"


@pytest.mark.requirement(46)
def test_plugins_that_cannot_be_loaded_are_listed_with_the_cause(catalog: Catalog) -> None:
    listed = {entry["class"]: entry for entry in catalog.listing()}
    assert "the licence has run out" in listed["shop_raises.Sink"]["error"]
    assert "SystemExit: 3" in listed["shop_exits.Source"]["error"]
    assert listed["shop_raises.Sink"]["type"] == "sink"
    numbers = listed[f"{SAMPLES}.NumbersSourceConnector"]
    assert (numbers["type"], numbers["version"]) == ("source", "2.1")
    assert "error" not in numbers
    assert listed[f"{SAMPLES}.Shout"]["type"] == "transformation"


def test_plugin_without_a_version_has_that_of_its_package() -> None:
    package = Plugin(f"{SAMPLES}:IsLoud", "predicates", origin="pytest")
    (entry,) = Catalog([package]).listing()
    assert entry["version"] == pytest.__version__


@pytest.mark.requirement(46)
def test_thing_that_is_no_class_is_refused() -> None:
    with pytest.raises(PluginError, match="is no class"):
        Plugin(f"{SAMPLES}:not_a_class", "transforms").load()
    with pytest.raises(PluginError, match="AttributeError"):
        Plugin(f"{SAMPLES}:Gone", "transforms").load()


def test_entry_points_of_installed_packages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[headrace.connect.connectors]\nshop-source = {SAMPLES}:NumbersSourceConnector\n"
        "[headrace.connect.transforms]\nshop-broken = no_such_module:Thing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    catalog = Catalog.installed()
    assert catalog.load("shop-source", "connectors").version == "2.1"
    assert catalog.find("shop-source", "connectors").origin == "shop"
    with pytest.raises(PluginError, match="of shop cannot be loaded: ModuleNotFoundError"):
        catalog.load("shop-broken", "transforms")


def test_plugins_for_tests_are_not_offered() -> None:
    found = [one.target for one in Catalog.installed().plugins]
    assert [target for target in found if "testing" in target] == []


def test_packages_of_a_folder_differ_when_one_comes_goes_or_is_installed_again(
    tmp_path: Path,
) -> None:
    seen = [packages_in(str(tmp_path))]
    folder = tmp_path / "shop-1.0.dist-info"
    folder.mkdir()
    seen.append(packages_in(str(tmp_path)))
    os.utime(folder, (1, 1))
    seen.append(packages_in(str(tmp_path)))
    (tmp_path / "notes.txt").touch()
    assert packages_in(str(tmp_path)) == seen[-1]
    folder.rmdir()
    assert packages_in(str(tmp_path)) == seen[0]
    assert len(set(seen)) == 3


def test_making_the_catalog_imports_no_plugin() -> None:
    program = (
        "import json, sys\nfrom headrace.connect.plugins.catalog import Catalog\n"
        "Catalog.installed()\nprint(json.dumps(sorted(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = json.loads(answer.stdout)
    parts = ("connectors.", "converters", "transforms", "predicates")
    ours = tuple(f"headrace.connect.{part}" for part in parts)
    assert [name for name in loaded if name.startswith(ours)] == []


@pytest.mark.parametrize("builtin", BUILTIN, ids=lambda builtin: builtin.target)
def test_builtin_plugin_and_its_keys_are_described(builtin: Builtin) -> None:
    loaded = Plugin(builtin.target, "connectors").load()
    assert loaded.__doc__
    for key in getattr(loaded, "config", ()):
        if key.default is not None:
            assert key.parse(key.write(key.default) or "") == key.default, key.name
        assert key.doc.endswith((".", "`")), key.name


def test_names_of_builtin_plugins_mean_one_plugin_each() -> None:
    catalog = Catalog.installed()
    for plugin in catalog.plugins:
        for name in plugin.names:
            assert catalog.find(name, plugin.family).target == plugin.target
