"""Which modules a record enters that is counted, from `Stream.count` to the disk."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tests.house.figures import ROOT
from tests.simulation.simulation import simulate

#: A seed in which nothing fails.
_QUIET = 23
_PREFIX = f"{ROOT}/"


def modules_of_a_count() -> list[str]:
    """Return the modules of which a function is called while a job of the simulation counts.

    Driver, workers, broker and store of the simulation are the product's own, in one process.
    """
    entered = set()

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(_PREFIX):
            entered.add(code.co_filename.removeprefix(_PREFIX).removesuffix(".py"))

    with tempfile.TemporaryDirectory() as folder:
        simulate(0, Path(folder) / "warm")
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            story = simulate(_QUIET, Path(folder) / "job")
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert story.wrong is None, str(story)
    assert story.strikes == 0
    return sorted(entered)
