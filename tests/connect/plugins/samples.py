"""Plugins that tests look for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.connect import (
    Config,
    ConfigProblem,
    Secret,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    between,
    declare,
    key,
    one_of,
)


class NumbersTask(SourceTask):
    def poll(self) -> Sequence[SourceRecord]:
        return []


class NumbersSourceConnector(SourceConnector):
    version = "2.1"
    task = NumbersTask
    config = declare(
        key("topic", str, "Where the numbers go.", required=True),
        key("first", int, "The first number.", default=1, valid=between(0, 9), group="Range"),
        key("last", int, "The last number.", default=9, group="Range"),
        key("mode", str, "Up or down.", default="up", valid=one_of("up", "down")),
        key("password", Secret, "What the numbers cost."),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        return [{}]

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        if config["first"] > config["last"]:
            yield ConfigProblem("first", "The key first is beyond last.")


class NowhereTask(SinkTask):
    def put(self, records: Sequence[SinkRecord]) -> None:
        pass


class NowhereSinkConnector(SinkConnector):
    task = NowhereTask


class Shout:
    version: ClassVar[str] = "1"
    config = declare(key("times", int, "How often.", default=1, valid=between(1, 3)))


class ShoutMore:
    config = declare(key("more", str, "How much more.", required=True))


class IsLoud:
    config = declare(key("volume", int, "From when on.", required=True))


class Words:
    config = declare(key("encoding", str, "The encoding.", default="utf-8"))


def not_a_class() -> Any:
    """Stands where a class should."""
