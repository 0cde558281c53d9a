"""The cases of connect.json over real HTTP."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect.fakes import plugins
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.rest.cases import Names, run_case, sweep
from tests.connect.running import Running, running

_FILE = json.loads((Path(__file__).parent / "connect.json").read_text())
_CASES: list[dict[str, Any]] = _FILE["cases"]


def profile_of_fakes(folder: Path) -> dict[str, Any]:
    """What cases call the plugins of the fake launcher."""
    source = {"connector.class": plugins.FILE_SOURCE, "tasks.max": "1", "topic": "t-in-${run}"}
    sink = {"connector.class": plugins.FILE_SINK, "tasks.max": "1", "topics": "t-in-${run}"}
    ours: dict[str, Any] = _FILE["profiles"]["ours"]
    return ours | {
        "src_class": plugins.FILE_SOURCE,
        "src_alias": "FileSource",
        "src_config": {**source, "file": str(folder / "in.txt")},
        "sink_alias": "FileSink",
        "sink_config": {**sink, "file": str(folder / "out-${run}.txt")},
        "failing_config": {**sink, "file": "/no/such/dir/o.txt"},
        "src_offset_entry": {
            "partition": {"filename": str(folder / "in.txt")},
            "offset": {"position": 2},
        },
        "logger": "headrace.connect.worker",
        "chaos_class": plugins.CHAOS,
        "chaos_alias": "Chaos",
        "chaos_config": {
            "connector.class": plugins.CHAOS,
            "tasks.max": "1",
            "task.start.timeout.ms": "300",
            "task.shutdown.graceful.timeout.ms": "300",
        },
        "chaos_transform": plugins.CHAOS_TRANSFORM,
    }


def positions_of_fakes(launcher: Any) -> Any:
    return launcher.positions


@pytest.fixture(scope="module")
def worker() -> Iterator[Running]:
    with running(FakeLauncher, positions_of_fakes) as one:
        yield one


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "in.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    return profile_of_fakes(folder)


@pytest.fixture
def names(worker: Running, profile: dict[str, Any]) -> Iterator[Names]:
    run = uuid.uuid4().hex[:8]
    yield profile | {"run": run}
    sweep(worker.url, run)


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_case_holds(case: dict[str, Any], worker: Running, names: Names) -> None:
    assert set(case.get("needs", [])) <= set(names["has"])
    run_case(case, worker.url, names)


def test_there_are_as_many_cases_as_there_should_be() -> None:
    assert len(_CASES) == 52
