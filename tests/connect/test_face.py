"""The face for people who write plugins is whole, and costs nothing until it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import headrace.client
import headrace.connect.hosts
import headrace.runtime


def test_every_name_of_the_face_is_there() -> None:
    """A notebook completes them, too."""
    faces = (headrace.client, headrace.connect, headrace.connect.hosts, headrace.runtime)
    told = [(face, name) for face in faces for name in dir(face)]
    assert {"AsyncClient", "Schema", "TaskChannel", "MemoryStore"} <= {name for _, name in told}
    assert [(face, name) for face, name in told if not hasattr(face, name)] == []


def test_importing_the_face_loads_nothing_heavy() -> None:
    program = "import json, sys, headrace.connect\nprint(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = json.loads(answer.stdout)
    heavy = ("pyarrow", "pandas", "msgspec", "starlette", "pyspark")
    assert [name for name in loaded if name.partition(".")[0] in heavy] == []
    assert [name for name in loaded if name.startswith("headrace.connect.")] == []
