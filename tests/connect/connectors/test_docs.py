"""docs/connect-connectors.md names every key of its connectors, and its examples are configs."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from headrace.connect.plugins import Connector
from headrace.connect.plugins.builtin import BUILTIN

PAGE = Path(__file__).parents[3] / "docs" / "connect-connectors.md"
SECTIONS = dict(
    re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
)


def connector(name: str) -> type[Connector]:
    [target] = [one.target for one in BUILTIN if name in one.aliases]
    module, _, kind = target.partition(":")
    found: type[Connector] = getattr(importlib.import_module(module), kind)
    assert issubclass(found, Connector)
    return found


def test_page_has_a_section_for_each_of_its_connectors() -> None:
    assert {"file-source", "file-sink", "http-source", "sqlite-sink"} <= set(SECTIONS)
    assert all("**Guarantee: " in text for text in SECTIONS.values())


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_section_names_every_key(name: str) -> None:
    named = set(re.findall(r"`([\w.]+)`", SECTIONS[name]))
    if name == "sqlite-sink":  # the other keys have their place in the page of PostgreSQL
        named |= {"connection.attempts", "connection.backoff.ms", "offsets.table", "offsets.name"}
    assert {one.name for one in connector(name).config} - named == set()


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_example_is_a_config_without_problems(name: str) -> None:
    for block in re.findall(r"^```json\n(.*?)^```", SECTIONS[name], re.DOTALL | re.MULTILINE):
        config = json.loads(block)["config"]
        assert config["connector.class"] == name
        kind = connector(name)
        assert kind.config.problems(config) == []
        assert list(kind().validate(kind.config.parse(config))) == []
