from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.broker import spawn_broker
from headrace.embedded import address_published, broker_folder, embedded_broker, running_broker
from headrace.errors import StoreLockedError
from tests.store.test_writer import eventually


def test_broker_is_started_and_stopped_with_the_context(tmp_path: Path) -> None:
    with embedded_broker(tmp_path) as address:
        found = running_broker(tmp_path)
        assert found is not None
        assert found.address == address
        assert found.pid != os.getpid()
    assert running_broker(tmp_path) is None
    assert not (tmp_path / "broker.json").exists()


def test_running_broker_is_met_and_left_running(tmp_path: Path) -> None:
    with embedded_broker(tmp_path) as first:
        with embedded_broker(tmp_path) as second:
            assert second == first
        assert running_broker(tmp_path) is not None


def test_broker_ends_when_the_command_that_started_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from headrace.embedded import embedded_broker\n"
        f"with embedded_broker(Path({str(tmp_path)!r})): print('up', flush=True); time.sleep(60)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdout=pipe) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"up\n"
        found = running_broker(tmp_path)
        assert found is not None
        command.kill()
    assert eventually(lambda: running_broker(tmp_path) is None)
    # Its store was closed: the folder is free.
    with embedded_broker(tmp_path):
        pass


def test_two_commands_at_once_meet_at_one_broker(tmp_path: Path) -> None:
    met: list[str] = []
    together = threading.Barrier(2)

    def command() -> None:
        with embedded_broker(tmp_path) as address:
            met.append(address)
            together.wait(30)

    threads = [threading.Thread(target=command) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(met)) == 1
    assert len(met) == 2


def test_address_of_a_dead_broker_is_passed_over(tmp_path: Path) -> None:
    with embedded_broker(tmp_path) as address:
        pass
    (tmp_path / "broker.json").write_text(json.dumps({"address": address, "pid": os.getpid()}))
    assert running_broker(tmp_path) is None
    with embedded_broker(tmp_path) as again:
        assert running_broker(tmp_path) is not None
        assert again.startswith("127.0.0.1:")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"address": "x", "pid": 1}', '{"pid": "x"}'])
def test_unreadable_address_is_no_broker(tmp_path: Path, text: str) -> None:
    (tmp_path / "broker.json").write_text(text)
    assert running_broker(tmp_path) is None


def test_successor_keeps_its_address(tmp_path: Path) -> None:
    with address_published(tmp_path, "127.0.0.1:1", 1), address_published(tmp_path, "h:2", 2):
        pass
    assert not (tmp_path / "broker.json").exists()
    with address_published(tmp_path, "127.0.0.1:1", 1):
        (tmp_path / "broker.json").write_text("of another")
    assert (tmp_path / "broker.json").read_text() == "of another"


def test_folder_held_without_an_address_is_named(tmp_path: Path) -> None:
    with (
        spawn_broker(broker_folder(tmp_path)),
        pytest.raises(StoreLockedError, match=str(tmp_path)),
        embedded_broker(tmp_path, patience=timedelta(seconds=0.5)),
    ):
        pass
