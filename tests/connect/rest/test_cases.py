"""The cases of connect.json over real HTTP: on played plugins, and on all that a worker has.

The whole is a worker with its hosts, its engine, a broker and the plugins that come with Headrace:
every row goes through Spark.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import EmbeddedBroker
from headrace.connect.data import DataPlane
from headrace.connect.hosts import HostSettings, ProcessLauncher
from headrace.connect.worker import Launcher
from tests.connect.fakes import plugins
from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.rest.cases import Names, fill, run_case, sweep
from tests.connect.running import Running, quick_settings, running

_FILE = json.loads((Path(__file__).parent / "connect.json").read_text())
_CASES: list[dict[str, Any]] = _FILE["cases"]
_CHAOS = "headrace.connect.testing.chaos"
_FILES = "headrace.connect.connectors.file"


@dataclass(frozen=True, slots=True)
class Stage:
    """A worker, and what cases are to call what is on it."""

    worker: Running
    profile: dict[str, Any]


@contextmanager
def played(folder: Path) -> Iterator[Stage]:
    """A worker whose hosts and plugins are played."""
    names = plugins.FILE_SOURCE, plugins.FILE_SINK, plugins.CHAOS
    profile = _profile(folder, *names, start_ms=300, stop_ms=300)
    with running(FakeLauncher, positions_of_fakes) as worker:
        yield Stage(worker, profile | {"chaos_transform": plugins.CHAOS_TRANSFORM})


@contextmanager
def whole(folder: Path) -> Iterator[Stage]:
    """A worker with hosts, engine and broker; one engine for all cases."""
    hosts = HostSettings(call_timeout=5.0, probe_interval=0, modules=(_CHAOS,))
    times = quick_settings(
        start_timeout="60 s", graceful_timeout="5 s", kill_timeout="2 s", call_timeout="5 s"
    )

    def make(address: str) -> DataPlane:
        launcher = ProcessLauncher(folder / "run", hosts)
        return DataPlane(launcher, address, folder / "engine")

    def positions(launcher: Launcher) -> DataPlane:
        assert isinstance(launcher, DataPlane)
        return launcher

    names = f"{_FILES}.FileSourceConnector", f"{_FILES}.FileSinkConnector", f"{_CHAOS}.ChaosSource"
    # The time that a task has to start and to stop is also that of its query.
    profile = _profile(folder, *names, start_ms=8_000, stop_ms=4_000)
    with (
        EmbeddedBroker(folder / "broker") as broker,
        running(lambda: make(broker.address), positions, settings=times) as worker,
    ):
        worker.do(_until_open(positions(worker.launcher)), patience=450)
        stage = Stage(worker, profile | {"chaos_transform": "ChaosTransform"})
        _warm_up(stage)
        yield stage


async def _until_open(plane: DataPlane) -> None:
    """Wait until Spark runs, also where a busy machine takes longer than a worker waits for it."""
    while True:
        with suppress(TimeoutError):
            await plane.engine.open()
            return


def _warm_up(stage: Stage) -> None:
    """Have a row moved: Spark's first batch takes many times as long as any other."""
    path = "/connectors/warm"
    config = fill(stage.profile["src_config"], stage.profile | {"run": "warm"})
    assert stage.worker.ask("PUT", f"{path}/config", json=config).is_success

    def moved() -> bool:
        return bool(stage.worker.ask("GET", f"{path}/offsets").json().get("offsets"))

    stage.worker.do(until(moved), patience=180)
    assert stage.worker.ask("DELETE", path).is_success


def _profile(
    folder: Path,
    source_class: str,
    sink_class: str,
    chaos_class: str,
    *,
    start_ms: int,
    stop_ms: int,
) -> dict[str, Any]:
    (folder / "in.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    source = {"connector.class": source_class, "tasks.max": "1", "topic": "t-in-${run}"}
    sink = {"connector.class": sink_class, "tasks.max": "1", "topics": "t-in-${run}"}
    ours: dict[str, Any] = _FILE["profiles"]["ours"]
    return ours | {
        "src_class": source_class,
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
        "chaos_class": chaos_class,
        "chaos_alias": chaos_class.rpartition(".")[2].removesuffix("Connector"),
        "chaos_config": {
            "connector.class": chaos_class,
            "tasks.max": "1",
            "topic": "chaos-${run}",
            "task.start.timeout.ms": str(start_ms),
            "task.shutdown.graceful.timeout.ms": str(stop_ms),
        },
    }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(played, id="played"),
        pytest.param(whole, id="whole", marks=[pytest.mark.spark, pytest.mark.timeout(600)]),
    ],
)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with request.param(tmp_path_factory.mktemp("cases")) as one:
        yield one


@pytest.fixture
def names(stage: Stage) -> Iterator[Names]:
    run = uuid.uuid4().hex[:8]
    yield stage.profile | {"run": run}
    sweep(stage.worker.url, run)


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_case_holds(case: dict[str, Any], stage: Stage, names: Names) -> None:
    assert set(case.get("needs", [])) <= set(names["has"])
    run_case(case, stage.worker.url, names)


def test_metrics_tell_what_a_task_has_moved(stage: Stage, names: Names) -> None:
    name = f"m-{names['run']}"
    config = fill(names["src_config"], names)
    assert stage.worker.ask("PUT", f"/connectors/{name}/config", json=config).is_success
    moved = f'headrace_connect_task_records_total{{connector="{name}",task="0"}} 20.0'

    def told() -> bool:
        return moved in stage.worker.ask("GET", "/metrics").text

    stage.worker.do(until(told), patience=60)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that is asked over HTTP, so by another thread."""
    while not await asyncio.to_thread(holds):
        await asyncio.sleep(0.1)


def test_there_are_as_many_cases_as_there_should_be() -> None:
    assert len(_CASES) == 52
