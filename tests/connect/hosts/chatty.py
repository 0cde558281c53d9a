"""Connectors that log: what nobody reads unless they want to, and more than anybody reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.connect import Config, SinkConnector, SinkRecord, SinkTask


class ChattyTask(SinkTask):
    """Whispers when it starts, and whenever it is asked how it is."""

    def start(self, config: Config) -> None:
        """Whisper."""
        del config
        self.context.logger.debug("whispered at the start")

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Take them."""

    def healthy(self) -> bool:
        """Whisper, and be well."""
        self.context.logger.debug("whispered meanwhile")
        return True


class ChattyConnector(SinkConnector):
    """Has one such task."""

    task = ChattyTask

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Ask for one."""
        del max_tasks
        return [{}]


class LoudTask(ChattyTask):
    """Prints a mebibyte whenever it is asked how it is."""

    def healthy(self) -> bool:
        """Print, and be well."""
        print("loud" * (1 << 18) + " enough")
        return True


class LoudConnector(ChattyConnector):
    """Has one such task."""

    task = LoudTask
