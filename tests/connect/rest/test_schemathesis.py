"""schemathesis reads the API's description, and calls every operation with what it says and what
it forbids: all answers must be as described."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.fakes.plugins import CHAOS, DATAGEN, FAKES, FILE_SOURCE, config_of
from tests.connect.rest.programs import call
from tests.connect.running import Running, quick_settings, running
from tests.connect.waiting import until_running

pytestmark = pytest.mark.slow

_CONFIG = Path(__file__).with_name("schemathesis.toml")


def _launcher() -> FakeLauncher:
    """Play also the plugin that the examples in the description name."""
    return FakeLauncher(fakes=(*FAKES, DATAGEN))


def _make_connectors(worker: Running, folder: Path) -> None:
    (folder / "in.txt").write_text("one\n")
    rows = config_of(FILE_SOURCE, topic="lines", file=str(folder / "in.txt"))
    for name, config, state in (
        ("rows", rows, "running"),
        ("chaos", config_of(CHAOS, tasks_max="2"), "paused"),
        ("stopped", rows, "stopped"),
    ):
        body = {"name": name, "config": config, "initial_state": state}
        assert worker.ask("POST", "/connectors", json=body).status_code == 201
    worker.do(until_running(worker.connect, "rows"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    # Calls of each operation, beside those at the borders of all that the description names.
    ("token", "examples"),
    [(None, 3), ("s3cret", 12)],
    ids=["open", "with a token"],
)
def test_every_answer_is_as_it_is_described(
    token: str | None, examples: int, tmp_path: Path
) -> None:
    settings = quick_settings(token=token)
    with running(_launcher, positions_of_fakes, settings=settings) as worker:
        headers = [] if token is None else ["--header", f"Authorization: Bearer {token}"]
        if token is not None:
            worker.http.headers["Authorization"] = f"Bearer {token}"
        _make_connectors(worker, tmp_path)
        done = call(
            "schemathesis",
            *("--config-file", str(_CONFIG), "run", f"{worker.url}/openapi.json"),
            *("--checks", "all", "--max-examples", str(examples), "--continue-on-failure"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--no-color", *headers),
            patience=500,
            folder=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
        assert worker.ask("GET", "/health").json()["status"] == "healthy"
