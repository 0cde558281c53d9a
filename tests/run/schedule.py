"""How tests are handed out to the processes of a run: whole groups, in the order of collection.

A pytest plugin.  A test shares a process with those of its file, with all tests on Spark, or with
whom its mark names (:func:`group_of`).  Marks are known where tests are collected, so the processes
write the groups of their tests down for the one that hands them out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.run.servers import FOLDER

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


def place_of(name: str) -> str:
    """Name the file of a test."""
    return name.partition("::")[0]


def group_of(item: pytest.Item) -> str:
    """Name what a test shares a process with: the session of Spark, its file, or nothing."""
    place = place_of(item.nodeid)
    if item.get_closest_marker("spread"):
        return item.nodeid
    if together := item.get_closest_marker("together"):
        return str(together.args[0])
    return "spark" if place.startswith("tests/spark/") else place


def read_groups() -> dict[str, str]:
    """Read the groups that are not files, by the names of tests; none where nothing was collected."""
    if not _written().exists():
        return {}
    found: dict[str, str] = json.loads(_written().read_text())
    return found


def _written() -> Path:
    return Path(os.environ[FOLDER]) / "groups.json"


def write_groups(groups: dict[str, str]) -> None:
    """Write the groups of tests down, in one piece, since all processes do."""
    odd = {name: group for name, group in groups.items() if not name.startswith(f"{group}::")}
    draft = _written().with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(odd))
    draft.rename(_written())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Hand out groups."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        """Hands out a group to whoever begins the last test of the one before."""

        def schedule(self) -> None:
            self._groups = read_groups()
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self._groups.get(nodeid) or place_of(nodeid)

        def _reschedule(self, node: Any) -> None:
            # A process begins a test when it knows the one behind it, and so has two.  A third would
            # wait there for the end of a long one, while another process has nothing to do.
            if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return Groups(config, log)
