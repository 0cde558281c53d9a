"""A whole worker over real processes: the cases of REST that need no data plane."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.hosts import HostSettings, ProcessLauncher
from headrace.connect.worker import Launcher
from tests.connect.fakes.launcher import FakePositions
from tests.connect.rest.cases import Names, run_case, sweep
from tests.connect.running import Running, quick_settings, running

_CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "rest" / "connect.json").read_text()
)["cases"]
#: These wait for positions that the data plane commits.
_NEED_DATA = {"offsets-source", "offsets-sink"}
_CHAOS = "headrace.connect.testing.chaos"
_FILE = "headrace.connect.connectors.file"


def profile_in(folder: Path) -> dict[str, Any]:
    source = {"connector.class": f"{_FILE}.FileSourceConnector", "tasks.max": "1"}
    sink = {"connector.class": f"{_FILE}.FileSinkConnector", "tasks.max": "1"}
    ours: dict[str, Any] = json.loads(
        (Path(__file__).parents[1] / "rest" / "connect.json").read_text()
    )["profiles"]["ours"]
    return ours | {
        "src_class": source["connector.class"],
        "src_alias": "FileSource",
        "src_config": {**source, "file": str(folder / "in.txt"), "topic": "t-in-${run}"},
        "sink_alias": "FileSink",
        "sink_config": {**sink, "file": str(folder / "out-${run}.txt"), "topics": "t-in-${run}"},
        "failing_config": {**sink, "file": "/no/such/dir/o.txt", "topics": "t-in-${run}"},
        "logger": "headrace.connect.worker",
        "chaos_class": f"{_CHAOS}.ChaosSource",
        "chaos_alias": "chaos-source",
        "chaos_config": {
            "connector.class": f"{_CHAOS}.ChaosSource",
            "tasks.max": "1",
            "topic": "chaos",
            "task.start.timeout.ms": "2000",
            "task.shutdown.graceful.timeout.ms": "500",
        },
        "chaos_transform": "chaos",
    }


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("worker")
    settings = HostSettings(call_timeout=5.0, probe_interval=0)
    times = quick_settings(start_timeout="10 s", graceful_timeout="3 s", kill_timeout="2 s")

    def launcher() -> Launcher:
        return ProcessLauncher(folder / "run", settings)

    with running(launcher, lambda _: FakePositions(), settings=times) as one:
        yield one


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "in.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    return profile_in(folder)


@pytest.fixture
def names(worker: Running, profile: dict[str, Any]) -> Iterator[Names]:
    run = uuid.uuid4().hex[:8]
    yield profile | {"run": run}
    sweep(worker.url, run)


@pytest.mark.parametrize(
    "case",
    [case for case in _CASES if case["id"] not in _NEED_DATA],
    ids=lambda case: str(case["id"]),
)
def test_case_holds_with_real_processes(
    case: dict[str, Any], worker: Running, names: Names
) -> None:
    run_case(case, worker.url, names)
