"""``docs/guides/operate/cluster.md`` by its words alone.

Its commands run one after the other, in an empty folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.java import find_java
from tests.cli.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "operate" / "cluster.md"
#: Each of the four jobs starts three or more Java processes: 140 s in all on two idle cores.
PATIENCE = 780


def commands() -> str:
    """The commands of the page, on ports that are free."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    text = "\n".join(blocks)
    for port in ("7077", "9876"):
        assert port in text
        text = text.replace(port, str(free_port()))
    return text


def environment() -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE")}
    path = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    return environ | {"PATH": path, "JAVA_HOME": str(find_java().home)}


@pytest.mark.budget(150)
@pytest.mark.timeout(840)
def test_the_commands_of_the_page_count_on_both_kinds_of_cluster(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with (tmp_path / "output").open("wb") as output, (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(
            ["bash", "-e", "-c", commands()],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    try:
        assert process.wait(PATIENCE) == 0, (tmp_path / "errors").read_text()[-4000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
    lines = (tmp_path / "output").read_text().splitlines()
    latest = dict(line.split("\t") for line in lines if "\t" in line)
    assert {word: json.loads(count) for word, count in latest.items()} == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
        "that": 1,
        "is": 1,
        "the": 1,
        "question": 1,
    }
    assert sum(line.endswith("every count is right") for line in lines) == 1
    assert any(line.startswith("env.tar.gz: ") for line in lines)
    assert any((tmp_path / "worker-1").iterdir()), "the workers ran executors"
    assert any((tmp_path / "worker-2").iterdir())
