"""Asks a worker of Connect on its own machine, again and again, and writes down what it says.

It runs as a program beside the worker, cut off with it or not: ``python -m tests.cluster.witness``.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Said", "read_said"]

_URL = "http://127.0.0.1:8083"
#: The file, in the machine's folder.
_FILE = "said.jsonl"
_PAUSE = 0.3


class Said(msgspec.Struct, frozen=True):
    """What a worker said at a time."""

    #: Seconds since 1970, before it was asked.
    at: float
    #: Status of ``/health``, and its body.
    health: int
    why: str
    #: What ``/connectors?expand=status`` holds, by connector.
    connectors: dict[str, Any]

    def tasks(self) -> dict[tuple[str, int], tuple[str, str]]:
        """Give state and worker of each task."""
        return {
            (name, task["id"]): (task["state"], task["worker_id"])
            for name, told in self.connectors.items()
            for task in told["status"]["tasks"]
        }

    def owners(self) -> dict[tuple[str, int], str]:
        """Give the workers of those tasks that run."""
        return {
            unit: worker for unit, (state, worker) in self.tasks().items() if state == "RUNNING"
        }


def read_said(folder: Path) -> list[Said]:
    """Give all that the worker of a machine has said, by the machine's folder."""
    file = folder / _FILE
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    # The last line may be half written.
    return [msgspec.json.decode(line, type=Said) for line in lines if line.endswith(b"\n")]


def _ask(path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"{_URL}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


def main() -> None:
    """Ask for ever."""
    with Path(_FILE).open("ab", buffering=0) as file:
        while True:
            at = time.time()
            status, why = _ask("/health")
            found, body = _ask("/connectors?expand=status")
            connectors = msgspec.json.decode(body) if found == 200 else {}
            said = Said(at, status, why.decode(), connectors)
            file.write(msgspec.json.encode(said) + b"\n")
            time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
