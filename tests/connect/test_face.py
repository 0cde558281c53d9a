"""The face for people who write plugins is whole, and costs nothing until it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import headrace.connect


def test_every_name_of_the_face_is_there() -> None:
    missing = [name for name in headrace.connect.__all__ if not hasattr(headrace.connect, name)]
    assert missing == []


def test_importing_the_face_loads_nothing_heavy() -> None:
    program = "import json, sys, headrace.connect\nprint(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = json.loads(answer.stdout)
    heavy = ("pyarrow", "pandas", "msgspec", "starlette", "pyspark")
    assert [name for name in loaded if name.partition(".")[0] in heavy] == []
    assert [name for name in loaded if name.startswith("headrace.connect.")] == []
