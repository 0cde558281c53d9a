"""The pages of connectors name every key of each, and their examples are configs."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from headrace.connect.connectors.storage.places import S3_KEYS
from headrace.connect.plugins import Connector
from headrace.connect.plugins.builtin import BUILTIN

DOCS = Path(__file__).parents[3] / "docs"
SECTION = re.compile(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    return dict(SECTION.findall((DOCS / page).read_text()))


STORAGE = sections("guides/connect/storage.md")
SECTIONS = sections("guides/connect/connectors.md") | STORAGE
#: What a section says of several connectors at once, or leaves to another page.
ELSEWHERE = {
    "sqlite-sink": {
        "connection.attempts",
        "connection.backoff.ms",
        "offsets.table",
        "offsets.name",
    },
    "files-source": {one.name for one in S3_KEYS},
    "files-sink": {one.name for one in S3_KEYS},
}


def connector(name: str) -> type[Connector]:
    [target] = [one.target for one in BUILTIN if name in one.aliases]
    module, _, kind = target.partition(":")
    found: type[Connector] = getattr(importlib.import_module(module), kind)
    assert issubclass(found, Connector)
    return found


def test_pages_have_a_section_for_each_of_their_connectors() -> None:
    assert {"file-source", "file-sink", "http-source", "sqlite-sink"} <= set(SECTIONS)
    assert set(STORAGE) == {
        "files-source",
        "files-sink",
        "elasticsearch-source",
        "elasticsearch-sink",
    }
    assert all("**Guarantee: " in text for text in SECTIONS.values())


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_section_names_every_key(name: str) -> None:
    named = set(re.findall(r"`([\w.]+)`", SECTIONS[name])) | ELSEWHERE.get(name, set())
    assert {one.name for one in connector(name).config} - named == set()


def test_keys_of_a_bucket_are_named() -> None:
    named = set(re.findall(r"`([\w.]+)`", (DOCS / "guides/connect/storage.md").read_text()))
    assert ELSEWHERE["files-sink"] <= named


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_example_is_a_config_without_problems(name: str) -> None:
    for block in re.findall(r"^```json\n(.*?)^```", SECTIONS[name], re.DOTALL | re.MULTILINE):
        config = json.loads(block)["config"]
        assert config["connector.class"] == name
        kind = connector(name)
        assert kind.config.problems(config) == []
        assert list(kind().validate(kind.config.parse(config))) == []
