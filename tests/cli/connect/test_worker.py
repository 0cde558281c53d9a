"""``headrace connect worker`` as a process: from its start to its end, with rows in between."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.connect.commands import Commands
from tests.run.forking import descendants

_STARTING = 300.0


class Worker:
    """A worker in a process of its own, on an embedded broker."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "headrace", "connect", "worker", "--port", "0"]
        variables = {one: os.environ[one] for one in os.environ if not one.startswith("HEADRACE_")}
        self.log = folder / "worker.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def first_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def family(self) -> list[psutil.Process]:
        """Every process that the worker has started, and what those have started."""
        return descendants(self.process.pid)

    def end(self) -> int:
        """Ask it to stop; give its exit status, once nothing of it is left."""
        family = self.family()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == [], self.log.read_text()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    one = Worker(tmp_path)
    yield one
    one.close()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    return Commands(capsys)


def until(holds: Callable[[], bool], patience: float = 90.0) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.1)


def states(commands: Commands, name: str) -> list[str]:
    told = commands.data("status", name)
    return [told["connector"]["state"], *(task["state"] for task in told["tasks"])]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_lines_move_from_a_file_to_a_file_by_commands_alone(
    worker: Worker, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = worker.first_line()
    assert line.startswith("headrace connect worker listening on http://127.0.0.1:"), (
        worker.log.read_text()
    )
    monkeypatch.setenv("HEADRACE_CONNECT_URL", line.split()[5].rstrip(","))
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"

    def written() -> list[str]:
        return sink.read_text().splitlines() if sink.exists() else []

    source.write_text("one\ntwo\n")
    commands("create", "in", "connector.class=file-source", f"file={source}", "topic=lines")
    until(lambda: bool(commands.data("offsets", "in")["offsets"]))
    commands("create", "out", "connector.class=file-sink", f"file={sink}", "topics=lines")
    until(lambda: sorted(written()) == ["one", "two"])
    assert states(commands, "in") == states(commands, "out") == ["RUNNING", "RUNNING"]

    commands("pause", "in")
    until(lambda: states(commands, "in") == ["PAUSED", "PAUSED"])
    with source.open("a") as more:
        more.write("three\n")
    commands("resume", "in")
    until(lambda: sorted(written()) == ["one", "three", "two"])

    commands("delete", "in")
    assert [one["name"] for one in commands.data("list")] == ["out"]
    assert worker.end() == 0


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_worker_that_is_stopped_while_it_starts_leaves_nothing(worker: Worker) -> None:
    def engine_is_there() -> bool:
        for one in worker.family():
            # It may end, or be ended, between two looks.
            with suppress(psutil.NoSuchProcess):
                if "headrace.connect.data.engine" in " ".join(one.cmdline()):
                    return True
        return False

    until(engine_is_there)
    told = re.search(r"REST answers at (\S+)", worker.log.read_text())
    assert told is not None
    assert httpx.get(f"{told[1]}/livez").status_code == 200
    waiting = httpx.get(f"{told[1]}/readyz")
    assert (waiting.status_code, waiting.json()["status"]) == (503, "starting")
    assert "starts Spark, for" in waiting.json()["message"]
    assert worker.end() == 0
    *steps, last = worker.log.read_text().splitlines()
    assert last == "Stopped before the worker was ready."
    assert [step.rpartition(" worker ")[2].partition(" ")[2] for step in steps[1:]] == [
        "looks for Java and for its broker",
        "starts Spark",
    ]


@pytest.mark.spark
def test_a_folder_of_another_worker_is_refused(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    with (tmp_path / "hosts" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = commands.refused("worker", "--data", str(tmp_path), "--namesrv", "127.0.0.1:1")
    assert "another Connect worker uses the folder" in told
    assert told.endswith("→ stop it first, or give this one a folder of its own")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--tls-key", "key.pem"), "The setting tls_certificate is missing"),
        (("--graceful-timeout", "soon"), "The setting graceful_timeout is 'soon'"),
    ],
)
def test_settings_that_cannot_be_are_told_before_anything_starts(
    commands: Commands, options: tuple[str, ...], problem: str
) -> None:
    assert problem in commands.refused("worker", *options)


def test_the_log_of_an_earlier_release_is_not_passed_over(
    commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "connect.log").touch()
    told = commands.refused("worker", "--data", str(tmp_path))
    assert f"are in {tmp_path}/log/connect.log, and workers keep them in a topic now" in told
    assert "move the file away" in told


def test_packages_of_the_extra_that_are_missing_are_named(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert commands.refused("worker") == (
        "error: headrace connect needs uvicorn, which is not installed\n"
        '  → pip install "headrace[connect]"'
    )
