"""Plugins that the fake launcher plays: what each asks for, and how it behaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CHAOS",
    "DATAGEN",
    "FAKES",
    "FILE_SINK",
    "FILE_SOURCE",
    "FakePlugin",
    "Key",
    "config_of",
    "named",
]

FILE_SOURCE = "fakes.FileSourceConnector"
FILE_SINK = "fakes.FileSinkConnector"
CHAOS = "fakes.ChaosConnector"
CHAOS_TRANSFORM = "fakes.ChaosTransform"


def _whole(text: str) -> str | None:
    return None if text.isdecimal() and int(text) > 0 else "must be a whole number above 0"


def _one_of(*words: str) -> Callable[[str], str | None]:
    return lambda text: None if text in words else f"must be one of {', '.join(words)}"


@dataclass(frozen=True, slots=True)
class Key:
    """A config key."""

    name: str
    required: bool = False
    default: str | None = None
    check: Callable[[str], str | None] = lambda _: None

    def problems(self, config: Mapping[str, str]) -> list[str]:
        given = config.get(self.name)
        if given is None:
            return [f"the key {self.name} is missing"] if self.required else []
        wrong = self.check(given)
        return [] if wrong is None else [f"the value '{given}' of {self.name} {wrong}"]

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": "STRING",
            "required": self.required,
            "default_value": self.default,
        }


_COMMON = (
    Key("name"),
    Key("connector.class", required=True),
    Key("tasks.max", default="1", check=_whole),
    Key("errors.tolerance", default="none", check=_one_of("none", "all")),
)


@dataclass(frozen=True, slots=True)
class FakePlugin:
    """A plugin."""

    class_name: str
    type: str
    keys: tuple[Key, ...] = ()
    aliases: tuple[str, ...] = ()
    error: str = ""
    #: Whether one task does all.
    single: bool = False
    version: str = "1.0"

    def listed(self) -> dict[str, Any]:
        return {
            "class": self.class_name,
            "type": self.type,
            "version": self.version,
            "aliases": list(self.aliases),
            "error": self.error,
        }

    def described(self) -> list[dict[str, Any]]:
        return [key.definition() for key in (*_COMMON, *self.keys)]

    def validated(self, config: Mapping[str, str]) -> dict[str, Any]:
        keys = (*_COMMON, *self.keys)
        problems = {key.name: key.problems(config) for key in keys}
        configs = [
            {
                "definition": key.definition(),
                "value": {
                    "name": key.name,
                    "value": config.get(key.name, key.default),
                    "recommended_values": [],
                    "errors": problems[key.name],
                    "visible": True,
                },
            }
            for key in keys
        ]
        return {
            "name": self.class_name,
            "error_count": sum(map(len, problems.values())),
            "groups": ["Common"],
            "configs": configs,
        }


FAKES = (
    FakePlugin(
        FILE_SOURCE,
        "source",
        (Key("file", required=True), Key("topic", required=True)),
        aliases=("file-source",),
        single=True,
    ),
    FakePlugin(FILE_SINK, "sink", (Key("file", required=True), Key("topics", required=True))),
    FakePlugin(CHAOS, "source", aliases=("chaos",)),
    FakePlugin("fakes.BrokenConnector", "source", error="ImportError: no module named 'gone'"),
    FakePlugin(CHAOS_TRANSFORM, "transformation"),
    FakePlugin("fakes.TextConverter", "converter"),
)


DATAGEN = FakePlugin("fakes.Datagen", "source", (Key("topic", required=True),), ("datagen-source",))


def named(class_name: str, plugins: tuple[FakePlugin, ...] = FAKES) -> FakePlugin:
    return next(one for one in plugins if one.class_name == class_name)


def config_of(class_name: str, **given: str) -> dict[str, str]:
    """A config; underscores of keys stand for dots."""
    keys = {key.replace("_", "."): value for key, value in given.items()}
    return {"connector.class": class_name, "tasks.max": "1", **keys}
