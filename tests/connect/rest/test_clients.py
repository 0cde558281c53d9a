"""Clients that people have, as black boxes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, FILE_SOURCE, config_of
from tests.connect.rest.test_cases import positions_of_fakes
from tests.connect.running import Running, quick_settings, running
from tests.connect.waiting import eventually, until_running

_KC = Path(sys.executable).parent / "kc"


@pytest.fixture(scope="module")
def worker() -> Iterator[Running]:
    settings = quick_settings(token="s3cret")
    with running(FakeLauncher, positions_of_fakes, settings=settings) as one:
        one.http.headers["Authorization"] = "Bearer s3cret"
        yield one


def kc(worker: Running, *arguments: str) -> Any:
    """Call kafka-connect-py; its exit status says nothing, its output does."""
    program = str(_KC) if _KC.exists() else shutil.which("kc")
    assert program is not None, "kafka-connect-py is among the tools of the tests"
    environment = os.environ | {
        "KAFKA_CONNECT_URL": worker.url,
        "KAFKA_CONNECT_BASIC_AUTH": "me:s3cret",
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_kafka_connect_py_does_all_that_it_can_do(worker: Running, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    config = config_of(FILE_SOURCE, topic="lines", file=str(tmp_path / "in.txt"))
    assert kc(worker, "info")["version"].startswith("3.9.")
    assert FILE_SOURCE in [one["class"] for one in kc(worker, "list-plugins")]
    made = kc(worker, "create", "-d", json.dumps({"name": "a", "config": config}))
    assert (made["name"], made["type"]) == ("a", "source")
    worker.do(until_running(worker.connect, "a"))
    assert kc(worker, "list") == ["a"]
    assert list(kc(worker, "list", "--state", "RUNNING", "--expand", "status")) == ["a"]
    assert kc(worker, "get", "a")["config"]["topic"] == "lines"
    assert kc(worker, "config", "a")["name"] == "a"
    assert kc(worker, "status", "a")["connector"]["state"] == "RUNNING"
    changed = kc(worker, "update", "a", "-d", json.dumps(config | {"x": "1"}))
    assert changed["config"]["x"] == "1"
    worker.do(until_running(worker.connect, "a"))
    kc(worker, "pause", "a")
    assert kc(worker, "status", "a")["tasks"][0]["state"] == "PAUSED"
    kc(worker, "resume", "a")
    assert kc(worker, "restart", "a", "--include-tasks")["name"] == "a"
    worker.do(until_running(worker.connect, "a"))
    assert kc(worker, "list-tasks", "a")[0]["id"] == {"connector": "a", "task": 0}
    assert kc(worker, "task-status", "a", "0")["state"] == "RUNNING"
    kc(worker, "restart-task", "a", "0")

    async def until_used() -> None:
        await eventually(lambda: worker.connect.topics("a") == ["lines"])

    worker.do(until_used())
    assert kc(worker, "list-topics", "a") == {"a": {"topics": ["lines"]}}
    kc(worker, "reset-topics", "a")
    kc(worker, "delete", "a")
    assert kc(worker, "list") == []


def test_kafka_connect_py_handles_all_connectors_at_once(worker: Running) -> None:
    for name in ("b-1", "b-2"):
        kc(worker, "create", "-d", json.dumps({"name": name, "config": config_of(CHAOS)}))
        worker.do(until_running(worker.connect, name))
    kc(worker, "pause", "--all", "--pattern", "b-.*")
    assert {kc(worker, "status", name)["connector"]["state"] for name in ("b-1", "b-2")} == {
        "PAUSED"
    }
    kc(worker, "delete", "--all", "--pattern", "b-.*")
    assert kc(worker, "list") == []
