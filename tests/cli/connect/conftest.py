"""A worker whose plugins are played, and the command line that asks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.connect.commands import Commands
from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.running import Running, running


@pytest.fixture
def worker() -> Iterator[Running]:
    with running(FakeLauncher, positions_of_fakes) as one:
        yield one


@pytest.fixture
def run(
    worker: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    """Calls ``headrace connect`` for the worker."""
    monkeypatch.setenv("HEADRACE_CONNECT_URL", worker.url)
    monkeypatch.delenv("HEADRACE_CONNECT_TOKEN", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return Commands(capsys)
