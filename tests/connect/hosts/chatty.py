"""Connectors that log: what nobody reads unless they want to, and more than anybody reads."""

from __future__ import annotations

import threading
import time
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
    """Prints a mebibyte every ten milliseconds, once it was asked how it is."""

    _printing: threading.Thread | None = None

    def healthy(self) -> bool:
        """Begin to print, and be well."""
        if self._printing is None:
            self._printing = threading.Thread(target=self._print, daemon=True)
            self._printing.start()
        return True

    def _print(self) -> None:
        while True:
            print("loud" * (1 << 18) + " enough", flush=True)
            time.sleep(0.01)


class LoudConnector(ChattyConnector):
    """Has one such task."""

    task = LoudTask
