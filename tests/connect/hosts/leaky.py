"""A connector that gives its password away wherever it can."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from headrace.connect import (
    Config,
    ConfigProblem,
    Secret,
    SinkConnector,
    SinkRecord,
    SinkTask,
    declare,
    key,
)

PASSWORD, TOKEN = "swordfish-1", "trout-from-outside"
"""One stands in the config, the other in a file that the config names."""


class LeakyTask(SinkTask):
    """Raises where its config says."""

    def start(self, config: Config) -> None:
        """Print it, log it, and raise."""
        self._where = config["where"]
        self._told = f"{config['password'].reveal()} and {config['token']}"
        print("printed", self._told)
        sys.stderr.write(f"written {self._told}\n")
        self.context.logger.warning("logged %s", self._told)
        self._leak("start")

    def _leak(self, where: str) -> None:
        if where == self._where:
            message = f"refused {self._told}"
            # Before what is long is cut, the secret must be gone: the cut is in its middle.
            raise ValueError("x" * 470 + message)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Raise with it."""
        self._leak("put")

    def healthy(self) -> bool:
        """Raise with it."""
        self._leak("healthy")
        return True

    def stop(self) -> None:
        """Raise with it."""
        self._leak("stop")


class LeakyConnector(SinkConnector):
    """Gives its password away."""

    task = LeakyTask
    config = declare(
        key("password", Secret, "Its word."),
        key("token", str, "Another one, from a file."),
        key("where", str, "What leaks it.", default=""),
        key("says", str, "What the connector prints and logs when it starts.", default=""),
    )
    told: ClassVar[str] = ""

    def start(self, config: Config) -> None:
        """Say what it is told to, which may be the secret of another one."""
        if said := config["says"]:
            print("said", said)
            self.context.logger.debug("whispered %s", said)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Quote it."""
        if config["where"] == "validate":
            yield ConfigProblem("where", f"no {config['password'].reveal()}, {config['token']}")

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Hand it on."""
        config = self.context.config
        if config["where"] == "tasks":
            return [{"word": config["password"].reveal()}]
        return [{"token": config["token"], "path": f"/srv/{config['token']}/a"}]
