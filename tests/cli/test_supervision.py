"""The supervisor, with small programs in place of drivers."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import _run, main
from headrace.cli.supervision import Supervisor, taken_over
from headrace.cli.supervision.supervisor import Restarts, Silence

#: What every program begins with: ``say`` and ``hear`` to the supervisor, ``count`` of its starts.
BEGIN = """
import os, signal, socket, subprocess, sys, time
folder, channel = sys.argv[1], socket.socket(fileno=int(sys.argv[-1]))
channel.set_inheritable(False)
lines = channel.makefile()
def say(word): channel.sendall((word + chr(10)).encode())
def hear(): return lines.readline().strip()
def note(name, text=""): open(os.path.join(folder, name), "w").write(str(text))
def die(): os.kill(os.getpid(), signal.SIGKILL)
count = 1
while True:
    try:
        os.close(os.open(os.path.join(folder, f"start-{count}"), os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        count += 1
"""
PATIENCE = 30.0
_GET_CHILD_SUBREAPER = 37


def command(folder: Path, text: str) -> list[str]:
    program = folder / "driver.py"
    program.write_text(BEGIN + text)
    return [sys.executable, str(program), str(folder)]


def starts(folder: Path) -> int:
    return len(list(folder.glob("start-*")))


def supervise(folder: Path, text: str, **given: Any) -> int:
    return Supervisor(command(folder, text), folder / "data", **given).run()


def await_true(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_driver_that_ends_well_is_not_started_again(tmp_path: Path) -> None:
    assert supervise(tmp_path, "say('driving')") == 0
    assert starts(tmp_path) == 1


def test_drivers_have_the_variables_that_they_are_given(tmp_path: Path) -> None:
    text = "note(f'told-{count}', os.environ['TOLD'])\nif count == 1: die()"
    assert supervise(tmp_path, text, environment={"TOLD": "hush"}) == 0
    assert [(tmp_path / f"told-{count}").read_text() for count in (1, 2)] == ["hush", "hush"]
    assert "TOLD" not in os.environ


def test_secrets_reach_a_driver_and_are_not_on_its_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: dict[str, Any] = {}

    class Recorder:
        def __init__(
            self, command: list[str], _: Path, environment: dict[str, str], **__: Any
        ) -> None:
            started.update(command=command, environment=environment)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(_run, "Supervisor", Recorder)
    options = ["--secret-key", "hush-1", "--security-token=hush-2", "--access-key", "app"]
    options += ["--spark-config", "spark.a.password=hush,3", "--spark-config=spark.b=4"]
    before = time.time()
    with pytest.raises(SystemExit) as ended:
        main(["run", *options, "--partitions", "3", "job.py", "--pickle-secret", "hush-" * 4])
    assert ended.value.code == 0
    *words, option, began = started["command"][3:]
    assert words == ["run", "--access-key", "app", "--partitions", "3", "job.py"]
    assert option == "--began"
    assert before <= float(began) <= time.time()
    for name, value in started["environment"].items():
        monkeypatch.setenv(name, value)
    assert taken_over() == {
        "secret_key": "hush-1",
        "security_token": "hush-2",
        "pickle_secret": "hush-" * 4,
        "spark_config": ["spark.a.password=hush,3", "spark.b=4"],
    }
    # What a driver starts does not get them.
    assert not set(started["environment"]) & set(os.environ)
    assert taken_over() == {}


def test_status_of_a_driver_that_failed_is_passed_on(tmp_path: Path) -> None:
    assert supervise(tmp_path, "sys.exit(3)") == 3
    assert starts(tmp_path) == 1


def test_driver_that_cannot_go_on_for_now_is_started_again_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if count == 1: say("driving"); say("committed"); die()
if count == 2: say("hindered"); sys.exit(1)
"""
    assert supervise(tmp_path, text) == 0
    assert starts(tmp_path) == 3
    assert "ended with status 1: starting another one in 1 s." in capsys.readouterr().err


def test_driver_that_could_never_begin_is_not_started_again(tmp_path: Path) -> None:
    assert supervise(tmp_path, "say('hindered'); sys.exit(1)") == 1
    assert starts(tmp_path) == 1


def test_driver_that_goes_on_in_vain_ends_the_supervisor_at_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if count == 1: say("driving"); say("committed"); die()
say("hindered"); sys.exit(1)
"""
    assert supervise(tmp_path, text, most_restarts=2) == 1
    assert starts(tmp_path) == 3
    assert "after 2 restarts without a commit: giving up" in capsys.readouterr().err


def test_killed_driver_is_replaced_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    assert supervise(tmp_path, "if count == 1: die()") == 0
    # The first pause after a failure would be as long as this.
    assert time.monotonic() - begin < 5.0
    assert starts(tmp_path) == 2
    assert "was killed by SIGKILL: starting another one.\n" in capsys.readouterr().err


def test_supervisor_gives_up_after_restarts_without_a_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert supervise(tmp_path, "say('driving'); die()", most_restarts=2) == 128 + signal.SIGKILL
    assert starts(tmp_path) == 3
    assert "after 2 restarts without a commit: giving up" in capsys.readouterr().err


def test_a_commit_makes_the_supervisor_forget_restarts(tmp_path: Path) -> None:
    text = "say('driving'); say('committed')\nif count < 5: die()"
    assert supervise(tmp_path, text, most_restarts=1) == 0
    assert starts(tmp_path) == 5


def test_pauses_grow_to_a_bound() -> None:
    restarts = Restarts(most=9)
    assert Restarts(most=None).pause() == 0
    assert [restarts.pause() for _ in range(10)] == [0, 1, 2, 4, 8, 16, 30, 30, 30, None]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets orphans be adopted")
def test_what_a_killed_driver_leaves_is_gone_before_the_next_begins(tmp_path: Path) -> None:
    # As Spark does it: a child of the child, in a process group of its own.
    text = f"""
if count == 1:
    grandchild = "import subprocess; p = subprocess.Popen(['sleep', '60'], process_group=0); print(p.pid, flush=True); p.wait()"
    child = subprocess.Popen([{sys.executable!r}, "-c", grandchild], stdout=subprocess.PIPE, process_group=0)
    note("left", f"{{child.pid}} {{int(child.stdout.readline())}}")
    die()
left = open(os.path.join(folder, "left")).read().split()
note("alive", [pid for pid in left if os.path.exists(f"/proc/{{pid}}")])
"""
    assert supervise(tmp_path, text) == 0
    assert (tmp_path / "alive").read_text() == "[]"
    adopts = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    assert adopts.value == 0, "whoever called the supervisor adopts nobody any more"


def test_standby_is_started_after_the_first_commit_and_takes_over_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first finds no driver and drives; it dies when its standby is ready.
    text = """
if count == 1:
    say("driving"); say("committed")
    while not os.path.exists(os.path.join(folder, "ready")): time.sleep(0.01)
    die()
if count == 2:
    say("ready"); note("ready")
    note("heard", hear())
    say("driving"); say("committed")
    while not os.path.exists(os.path.join(folder, "start-3")): time.sleep(0.01)
if count == 3:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    note("third")
    hear()
"""
    assert supervise(tmp_path, text, standby=True) == 0
    assert (tmp_path / "heard").read_text() == "go"
    assert starts(tmp_path) == 3, "a new standby is started"
    assert "its standby takes over" in capsys.readouterr().err


def test_death_of_a_standby_leaves_the_driver_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if count == 1:
    say("driving"); say("committed")
    while not os.path.exists(os.path.join(folder, "start-3")): time.sleep(0.01)
    note("heard", "nothing")
elif count == 2:
    die()
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    hear()
"""
    assert supervise(tmp_path, text, standby=True) == 0
    said = capsys.readouterr().err
    assert said.startswith("Standby ")
    assert "was killed by SIGKILL: starting another one" in said


def test_standby_that_fails_to_take_over_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if count == 1:
    say("driving"); say("committed")
    while not os.path.exists(os.path.join(folder, "ready")): time.sleep(0.01)
    die()
if count == 2:
    note("ready")
    hear()
    sys.exit(1)
"""
    assert supervise(tmp_path, text, standby=True) == 0
    assert starts(tmp_path) == 3
    assert "ended with status 1: starting another one in 1 s." in capsys.readouterr().err


def test_driver_that_was_taken_over_elsewhere_becomes_a_standby(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
if count == 1:
    say("driving"); say("fenced")
    sys.exit(1)
"""
    assert supervise(tmp_path, text, standby=True) == 0
    assert starts(tmp_path) == 2
    assert "another one, elsewhere, runs the job now" in capsys.readouterr().err


def silence_over(limit: float, events: list[tuple[str, float]]) -> list[float]:
    """When a silence is over, by what was heard and when it was looked at."""
    silence, found = Silence(limit), []
    for what, now in events:
        if what == "heard":
            silence.heard(now)
        elif silence.is_over(now):
            found.append(now)
    return found


def looks(begin: float, end: float, pause: float = 0.5) -> list[tuple[str, float]]:
    return [("look", begin + pause * n) for n in range(int((end - begin) / pause) + 1)]


@pytest.mark.parametrize(
    ("events", "over"),
    [
        pytest.param(looks(0, 100), None, id="nothing counts before the first word"),
        pytest.param([("heard", 0), *looks(0, 10)], None, id="at the limit"),
        pytest.param([("heard", 0), *looks(0, 11)], 10.5, id="over the limit"),
        pytest.param(
            [("heard", 0), *looks(0, 9), ("heard", 9), *looks(9, 19)], None, id="one word is enough"
        ),
        pytest.param(
            [("heard", 0), *looks(0, 5), ("look", 3600), *looks(3600, 3604)],
            None,
            id="the machine slept: its hour counts as one look",
        ),
        pytest.param(
            [("heard", 0), *looks(0, 5), ("look", 3600), *looks(3600, 3605)],
            3604.5,
            id="it hung before the machine slept, and hangs still",
        ),
        pytest.param(
            [("heard", 0), *[("look", 30.0 * n) for n in range(1, 11)]],
            None,
            id="looks are rare on a busy machine: each counts as a second at most",
        ),
    ],
)
def test_silence(events: list[tuple[str, float]], over: float | None) -> None:
    assert silence_over(10.0, events)[:1] == ([] if over is None else [over])


def test_driver_that_is_stopped_is_killed_and_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
say("alive"); say("driving")
if count == 1: os.kill(os.getpid(), signal.SIGSTOP)
"""
    begin = time.monotonic()
    assert supervise(tmp_path, text, driver_timeout=1.0) == 0
    assert 1.0 < time.monotonic() - begin < 10.0
    assert starts(tmp_path) == 2
    said = capfd.readouterr().err
    assert "gave no sign of life for 1 s (setting driver_timeout), as it was stopped" in said
    assert "was killed by SIGKILL: starting another one." in said


def test_driver_whose_work_stands_still_shows_where_and_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
from headrace.cli.supervision import Channel
def wait_for_ever():
    time.sleep(60)
if count == 1:
    Channel(channel.detach()).watch(lambda: float(len(sys.argv) * 10))
    wait_for_ever()
"""
    assert supervise(tmp_path, "say('alive')" + text, driver_timeout=2.0) == 0
    assert starts(tmp_path) == 2
    said = capfd.readouterr().err
    assert "gave no sign of life for 2 s (setting driver_timeout): killing it." in said
    assert "in wait_for_ever" in said, "it shows where its threads are"


@pytest.mark.slow
def test_busy_driver_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Its main thread computes for longer than the limit, and its work is never looked after for
    # some seconds: both are nothing to be shot for.
    text = """
from headrace.cli.supervision import Channel
begin = time.monotonic()
Channel(channel.detach()).watch(lambda: 4.0)
while time.monotonic() - begin < 5: sum(range(1000))
os._exit(0)
"""
    assert supervise(tmp_path, text, driver_timeout=3.0) == 0
    assert starts(tmp_path) == 1
    assert "sign of life" not in capfd.readouterr().err


def test_standby_that_hangs_is_replaced_and_the_driver_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
if count == 1:
    say("driving"); say("committed")
    while not os.path.exists(os.path.join(folder, "start-3")): say("alive"); time.sleep(0.1)
elif count == 2:
    say("alive"); os.kill(os.getpid(), signal.SIGSTOP)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    hear()
"""
    assert supervise(tmp_path, text, standby=True, driver_timeout=1.0) == 0
    said = capfd.readouterr().err
    assert said.startswith("Standby ")
    assert "gave no sign of life for 1 s" in said
    assert said.count("killing it") == 1


def test_driver_that_hangs_when_it_is_to_stop_is_killed(tmp_path: Path) -> None:
    text = """
say("alive")
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
note("pid", os.getpid())
while True: say("alive"); time.sleep(0.1)
"""
    process = running(tmp_path, text, "driver_timeout=1.0")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGKILL
    assert starts(tmp_path) == 1


RUN = """
import sys
from pathlib import Path
from headrace.cli.supervision import Supervisor
sys.exit(Supervisor(sys.argv[1:], Path("unused"), {given}).run())
"""


def running(folder: Path, text: str, given: str = "") -> subprocess.Popen[bytes]:
    run = RUN.format(given=given)
    process = subprocess.Popen([sys.executable, "-c", run, *command(folder, text)])
    await_true("the driver did not begin", (folder / "pid").exists)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_passed_on_and_the_driver_ends_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    text = """
def stop(*_): note("stopped"); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
note("pid", os.getpid())
time.sleep(60)
"""
    process = running(tmp_path, text)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    assert (tmp_path / "stopped").exists()
    assert starts(tmp_path) == 1


def test_driver_that_is_stopped_before_it_can_hear_of_it_has_not_failed(tmp_path: Path) -> None:
    process = running(tmp_path, "note('pid', os.getpid()); time.sleep(60)")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert starts(tmp_path) == 1


def test_what_a_driver_has_begun_ends_with_it_when_it_is_stopped(tmp_path: Path) -> None:
    text = """
left = subprocess.Popen(["sleep", "60"], process_group=0)
note("left", left.pid)
note("pid", os.getpid())
time.sleep(60)
"""
    process = running(tmp_path, text)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not Path("/proc", (tmp_path / "left").read_text()).exists()


def test_signal_in_a_pause_ends_the_supervisor(tmp_path: Path) -> None:
    process = running(tmp_path, "note('pid', os.getpid()); die()")
    await_true("no third start", lambda: starts(tmp_path) == 3)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    assert time.monotonic() - begin < 2.0, "it does not wait for the end of the pause"


def test_driver_stops_in_order_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    text = """
from headrace.cli.supervision import Channel
def stop(*_): note("stopped"); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
supervisor = Channel(channel.detach())
note("pid", os.getpid())
time.sleep(60)
"""
    process = running(tmp_path, text)
    process.kill()
    process.wait()
    await_true("the driver did not stop", (tmp_path / "stopped").exists)
