from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli._terminal import report, status_of
from headrace.errors import FencedError, JobFailedError, TopicNotFoundError
from headrace.settings import JobSettings
from tests.cli.ports import free_port
from tests.cli.programs import BUILT, SPOUTS_AND_BOLTS, WORD_COUNT, write

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in a folder of its own and give its exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def start(*arguments: str) -> int:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        return int(stopped.value.code or 0)

    return start


def test_help_lists_every_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for command in ("run", "describe", "broker", "topic", "produce", "consume", "doctor"):
        assert f" {command} " in shown


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys, json\n"
        "from headrace.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(answer.stderr))
    assert not loaded & {"pyspark", "pyarrow", "numpy", "pandas", "msgspec"}


def test_version_is_shown(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("headrace ")


def test_unknown_command_is_a_usage_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nonsense") == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_no_fault_of_ours(tmp_path: Path, unbuffered: str) -> None:
    program = write(tmp_path, WORD_COUNT + BUILT)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "describe", str(program)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device.\n"


def test_a_command_line_that_is_wrong_has_a_status_of_its_own(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run") == 2
    assert "Missing argument" in capsys.readouterr().err


def test_every_exit_status_of_run_is_told_in_one_table() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/operate/running.md").read_text()
    table = page.partition("## Exit statuses")[2]
    found = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert found[2:] == ["0", "1", "2", str(status_of(FencedError("newer"))), "128 + n"]


def test_every_setting_is_an_option_of_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--help") == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(JobSettings):
        assert f"--{field.name.replace('_', '-')} " in shown


def test_error_is_one_message_and_status_1(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("describe", "nothing.py") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: There is no file nothing.py.\n  → ")
    assert "Traceback" not in shown


def test_debug_shows_the_traceback(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--debug", "describe", "nothing.py") == 1
    assert "Traceback" in capsys.readouterr().err


def test_wrong_setting_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "program.py", "--retry-timeout", "5") == 1
    assert "The setting retry_timeout is '5'" in capsys.readouterr().err


def test_spark_setting_without_value_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "program.py", "--spark-config", "spark.a") == 1
    assert "key=value" in capsys.readouterr().err


def test_absent_broker_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert run("topic", "list", "--namesrv", address) == 1
    assert address in capsys.readouterr().err


def test_causes_that_lead_back_to_themselves_have_an_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = JobFailedError("Spark did not start"), JobFailedError("Java was killed")
    first.__cause__, second.__cause__ = second, first
    report(first, debug=False)
    assert capsys.readouterr().err == "error: Spark did not start\nbecause: Java was killed\n"


def test_fault_of_our_own_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    report(ZeroDivisionError("division by zero"), debug=False)
    shown = capsys.readouterr().err
    assert shown.startswith("error: ZeroDivisionError: division by zero\n")
    assert "headrace --debug" in shown


def test_cause_is_told_once_with_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = JobFailedError("Job word-count stopped.")
    error.__cause__ = TopicNotFoundError("Topic 'lines' does not exist.", hint="Create it.")
    report(error, debug=False)
    assert capsys.readouterr().err == (
        "error: Job word-count stopped.\nbecause: Topic 'lines' does not exist.\n  → Create it.\n"
    )


def test_brackets_in_messages_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    report(JobFailedError("value [bold]b'[red]'"), debug=False)
    assert "value [bold]b'[red]'" in capsys.readouterr().err


def test_description_is_printed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, WORD_COUNT + BUILT)
    assert run("describe", str(path)) == 0
    assert capsys.readouterr().out.startswith("topology word-count\n")
    assert run("describe", str(path), "--dot") == 0
    assert capsys.readouterr().out.startswith('digraph "word-count" {')


def test_a_spout_without_an_end_cannot_be_caught_up_with(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = write(tmp_path, SPOUTS_AND_BOLTS)
    assert run("run", str(program), "--until-caught-up", "--no-supervise") == 1
    assert "nobody knows the end of spout 'numbers'" in capsys.readouterr().err


def test_a_topology_of_spouts_and_bolts_is_described(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = write(tmp_path, SPOUTS_AND_BOLTS)
    assert run("describe", f"{program}:builder") == 0
    shown = capsys.readouterr().out
    assert "group 1, job two-lines: spout lines" in shown
    assert "copies  end bolt, TopicSink('copies'), <- lines (shuffle)" in shown
