"""What connectors and tasks are shown as."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.connect.commands import Commands
from tests.connect.fakes.plugins import CHAOS, FILE_SINK
from tests.connect.running import Running
from tests.connect.waiting import eventually, states, until_running


def make(run: Commands, worker: Running) -> None:
    """Make a connector that runs, and one of whose tasks cannot start."""
    run("create", "lines", f"connector.class={CHAOS}", "tasks.max=2")
    run("create", "broken", f"connector.class={CHAOS}", "chaos.start=raise")
    worker.do(until_running(worker.connect, "lines", 2))
    worker.do(eventually(lambda: states(worker.connect, "broken") == ["RUNNING", "FAILED"]))


def picture(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines()) + "\n"


def test_nothing_is_there_yet(run: Commands) -> None:
    said = "There is no connector yet; `headrace connect create` makes one."
    assert run.said("list") == said
    assert run.said("status") == said
    assert run.data("list") == []
    assert run.data("status") == []


def test_the_list_has_a_line_for_each_connector(run: Commands, worker: Running) -> None:
    make(run, worker)
    assert run("list") == picture("""
        ┏━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━┓
        ┃ connector ┃ type   ┃ class          ┃ state   ┃ tasks     ┃ worker ┃
        ┡━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━┩
        │ broken    │ source │ ChaosConnector │ RUNNING │ 1 FAILED  │ w1     │
        │ lines     │ source │ ChaosConnector │ RUNNING │ 2 RUNNING │ w1     │
        └───────────┴────────┴────────────────┴─────────┴───────────┴────────┘
    """)
    broken, _ = run.data("list")
    assert (broken["name"], broken["tasks"]) == ("broken", {"FAILED": 1})


def test_the_status_has_a_line_for_each_task_and_says_why_it_failed(
    run: Commands, worker: Running
) -> None:
    make(run, worker)
    assert run("status") == picture("""
        ┏━━━━━━━━━━━┳━━━━━━━━┳━━━━━━┳━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
        ┃ connector ┃ type   ┃ task ┃ state   ┃ phase   ┃ worker ┃ error                                   ┃
        ┡━━━━━━━━━━━╇━━━━━━━━╇━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
        │ broken    │ source │      │ RUNNING │ running │ w1     │                                         │
        │           │        │ 0    │ FAILED  │ error   │ w1     │ broken-0 failed: ChaosError: start()    │
        │           │        │      │         │         │        │ was told to raise                       │
        ├───────────┼────────┼──────┼─────────┼─────────┼────────┼─────────────────────────────────────────┤
        │ lines     │ source │      │ RUNNING │ running │ w1     │                                         │
        │           │        │ 0    │ RUNNING │ running │ w1     │                                         │
        │           │        │ 1    │ RUNNING │ running │ w1     │                                         │
        └───────────┴────────┴──────┴─────────┴─────────┴────────┴─────────────────────────────────────────┘
    """)
    one = run.data("status", "broken")
    assert one["tasks"][0]["state"] == "FAILED"
    assert one["tasks"][0]["trace"].startswith("broken-0 failed")


def test_a_name_that_looks_like_markup_is_shown_as_it_is(
    run: Commands, worker: Running, tmp_path: Path
) -> None:
    run("create", "[red]", f"connector.class={FILE_SINK}", f"file={tmp_path / 'a'}", "topics=b")
    assert "[red]" in run("list")
    assert "[red]" in run("status")


def test_watch_shows_each_change_until_ctrl_c(run: Commands, worker: Running) -> None:
    make(run, worker)
    command = [sys.executable, "-m", "headrace", "connect", "status", "lines"]
    with subprocess.Popen(
        [*command, "--watch", "--interval", "100 ms", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as watching:
        try:
            assert watching.stdout is not None
            assert '"RUNNING"' in watching.stdout.readline()
            run("pause", "lines")
            assert '"PAUSED"' in watching.stdout.readline()
        finally:
            watching.send_signal(signal.SIGINT)
            status = watching.wait(20)
    assert status == 0
