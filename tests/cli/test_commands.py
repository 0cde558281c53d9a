"""The commands against an embedded broker, as a person would call them."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.broker import spawn_broker
from headrace.cli import main
from headrace.client import Client
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spawn_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.address


@pytest.fixture(autouse=True)
def cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NAMESRV", address)
    monkeypatch.setenv("COLUMNS", "120")


def run(*arguments: str, status: int = 0) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert (stopped.value.code or 0) == status


def test_topics_are_made_listed_and_deleted(capsys: Captured) -> None:
    run("topic", "create", "made", "--queues", "3")
    assert "Topic made has 3 queues." in capsys.readouterr().err
    run("topic", "list")
    listed = capsys.readouterr().out.splitlines()
    assert "made" in listed
    assert "broker-a" not in listed
    run("topic", "list", "--all")
    assert "broker-a" in capsys.readouterr().out.splitlines()
    run("topic", "delete", "made")
    run("topic", "list")
    assert "made" not in capsys.readouterr().out.splitlines()


def test_topic_that_is_not_there_cannot_be_deleted(capsys: Captured) -> None:
    run("topic", "delete", "nothing", status=1)
    assert "nothing" in capsys.readouterr().err


def test_status_counts_messages_by_queue(capsys: Captured) -> None:
    run("topic", "create", "counted", "--queues", "2")
    run("produce", "counted", "a", "b", "c")
    capsys.readouterr()
    run("topic", "status", "counted")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2] for line in lines if "all" in line.split()] == ["3"]


def test_messages_come_back_with_their_keys(capsys: Captured) -> None:
    run("topic", "create", "keyed", "--queues", "4")
    run("produce", "keyed", "--key-separator", "=", "a=1", "b=2", "a=3")
    capsys.readouterr()
    run("consume", "keyed", "--from-beginning", "--until-end")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["a\t1", "a\t3", "b\t2"]
    assert lines.index("a\t1") < lines.index("a\t3")


def test_body_that_cannot_be_unpacked_is_left_out_with_its_place(
    address: str, capsys: Captured
) -> None:
    run("topic", "create", "packed", "--queues", "1")
    names = "abcdefghijkm"
    with Client(address) as client:
        for flag, body in ((0, b"one"), (1, b"no zlib"), (1, zlib.compress(b"three"))):
            values = ["p", "packed", "TBW102", 4, 0, flag, 1, 0, "", 0, "false", "false"]
            fields = {name: str(value) for name, value in zip(names, values, strict=True)}
            make = partial(Command, RequestCode.SEND_MESSAGE_V2, fields, body)
            client.ask_broker("broker-a", make)
    capsys.readouterr()
    run("consume", "packed", "--from-beginning", "--until-end")
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["\tone", "\tthree"]
    assert "packed@broker-a@0, offset 1: left out: a zlib body cannot be unpacked" in shown.err
    run("consume", "packed", "--from-beginning", "--until-end", "--group", "readers")
    assert sorted(capsys.readouterr().out.splitlines()) == ["\tone", "\tthree"]


def test_lines_of_stdin_are_sent(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    run("topic", "create", "piped")
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    run("produce", "piped")
    assert "Sent 2 messages to piped." in capsys.readouterr().err
    run("consume", "piped", "--from-beginning", "--max-messages", "2")
    assert sorted(capsys.readouterr().out.splitlines()) == ["\tone", "\ttwo"]


def test_line_without_separator_is_refused(capsys: Captured) -> None:
    run("topic", "create", "unkeyed")
    run("produce", "unkeyed", "--key-separator", "=", "abc", status=1)
    assert "'abc'" in capsys.readouterr().err


def test_missing_topic_says_how_to_make_it(capsys: Captured) -> None:
    run("consume", "nowhere", "--from-beginning", status=1)
    assert "headrace topic create nowhere" in capsys.readouterr().err


def test_doctor_finds_the_broker(address: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert f"{address} answers" in capsys.readouterr().out


def test_embedded_broker_is_used_when_no_address_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.delenv("HEADRACE_NAMESRV")
    folder = str(tmp_path)
    run("topic", "create", "kept", "--data-dir", folder)
    run("produce", "kept", "x", "--data-dir", folder)
    capsys.readouterr()
    run("consume", "kept", "--from-beginning", "--until-end", "--data-dir", folder)
    assert capsys.readouterr().out == "\tx\n"


def test_broker_command_runs_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "broker", "--data", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("headrace broker listening on 127.0.0.1:")
            assert (tmp_path / "broker.json").exists()
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(30)
    assert status == 0
    assert not (tmp_path / "broker.json").exists()


def test_port_in_use_is_one_message(address: str, tmp_path: Path, capsys: Captured) -> None:
    port = address.rpartition(":")[2]
    run("broker", "--data", str(tmp_path), "--port", port, status=1)
    shown = capsys.readouterr().err
    assert port in shown
    assert "Traceback" not in shown


def test_groups_are_listed_with_their_lag_reset_and_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    run("topic", "create", "lagging", "--queues", "1")
    run("produce", "lagging", "a", "b", "c")
    run("group", "reset", "slow", "--topic", "lagging", "--to", "first")
    assert "Group slow goes on at 0 in queue 0 of lagging." in capsys.readouterr().err
    run("consume", "lagging", "--group", "slow", "--max-messages", "1")
    assert capsys.readouterr().out == "\ta\n"
    run("group", "lag", "slow", "--json")
    shown = json.loads(capsys.readouterr().out)
    (queue,) = [queue for queue in shown["queues"] if queue["topic"] == "lagging"]
    assert (shown["lag"], queue["offset"], queue["end"], queue["lag"]) == (2, 1, 3, 2)
    assert queue["behind_seconds"] > 0
    run("group", "list")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "slow" in line]
    assert row.split()[1:6:2] == ["slow", "0", "2"]
    run("group", "list", "--json")
    rows = {row["group"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["slow"]["members"], rows["slow"]["lag"]) == (0, 2)
    rounds = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(rounds, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli._groups.time", SimpleNamespace(sleep=sleep))
    run("group", "lag", "slow", "--topic", "lagging", "--watch")
    assert capsys.readouterr().out.count("broker-a 0") == 3
    run("consume", "lagging", "--group", "slow", "--until-end")
    assert capsys.readouterr().out == "\tb\n\tc\n"
    run("group", "delete", "slow")
    run("group", "delete", "slwo", status=1)
    assert "there is no group 'slwo'" in capsys.readouterr().err
    run("group", "reset", "slow", "--topic", "lagging", "--to", "sometime", status=1)
    assert "no place in a topic" in capsys.readouterr().err


def test_a_compaction_topic_is_shown_as_a_table(capsys: Captured) -> None:
    run("topic", "create", "colors", "--queues", "2", "--compaction")
    run(
        "produce",
        "colors",
        "--key-separator",
        "=",
        "sky=blue",
        "sun=red",
        "sun=yellow",
        "sea=green",
    )
    capsys.readouterr()
    run("table", "colors")
    assert capsys.readouterr().out == "sea\tgreen\nsky\tblue\nsun\tyellow\n"
    run("table", "colors", "--prefix", "s")
    assert len(capsys.readouterr().out.splitlines()) == 3
    run("table", "colors", "sun")
    assert capsys.readouterr().out == "yellow\n"
    run("table", "colors", "moon", status=1)
    assert "has no key 'moon'" in capsys.readouterr().err
    run("table", "colors", "sun", "--follow", status=1)


def test_messages_are_sent_with_keys_tags_and_properties_and_found_again(capsys: Captured) -> None:
    run("topic", "create", "told", "--queues", "1")
    run("produce", "told", "--key", "k1", "--tag", "red", "--property", "who=me", "hello")
    capsys.readouterr()
    run("message", "told", "--queue", "0", "--offset", "0", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["body"], found["queue"], found["offset"]) == ("hello", 0, 0)
    assert {"KEYS": "k1", "TAGS": "red", "who": "me"}.items() <= found["properties"].items()
    run("message", "told", "--id", found["id"])
    assert "hello" in capsys.readouterr().out
    run("message", "told", "--key", "k1")
    assert "k1" in capsys.readouterr().out
    run("message", "told", status=1)
    assert "one way to find the message" in capsys.readouterr().err
    run("produce", "told", "--sharding-key", "s", "--key-separator", "=", "k2=bye")
    run("produce", "told", "--delay", "soon", "x", status=1)
    assert "a duration is a number and a unit" in capsys.readouterr().err
    run("produce", "told", "--property", "x", "x", status=1)
    run("topic", "describe", "told")
    shown = capsys.readouterr().out
    assert "1 to read, 1 to write" in shown
    assert "none" in shown


@pytest.mark.budget(3)  # four processes, one after the other
def test_a_table_is_followed_until_it_is_interrupted() -> None:
    run("topic", "create", "live", "--queues", "1", "--compaction")
    run("produce", "live", "--key-separator", "=", "a=1")
    command = [sys.executable, "-m", "headrace", "table", "live", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "a\t1\n"
            run("produce", "live", "--key-separator", "=", "a=2")
            assert process.stdout.readline() == "a\t2\n"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
