"""``headrace run`` from end to end, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.cli.loading import load_program
from headrace.client import Admin, Client, Message, Producer, PullConsumer
from headrace.embedded import embedded_broker
from headrace.settings import JobSettings
from headrace.spark import StreamJob
from headrace.topology import Topology
from tests.cli.programs import BUILT, WORD_COUNT, write

pytestmark = pytest.mark.spark

LINES = ["to be or not to be", "that is the question", "to be"]


def headrace(
    *arguments: str, folder: Path, own: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE")}
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments, "--data-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=folder,
        env=environ | dict(own or {}),
    )


def counts_of(client: Client) -> dict[str, int]:
    consumer, counts = PullConsumer(client), {}
    for queue in client.queues("counts"):
        for block in consumer.blocks(queue, 0, consumer.end_offset(queue)):
            for message in block.messages():
                counts[str(message.keys)] = json.loads(message.body)
    return counts


def test_file_with_a_neighbour_runs_until_it_has_caught_up(tmp_path: Path) -> None:
    write(tmp_path, "def words(line):\n    return line.split()\n", "neighbour.py")
    text = "import neighbour\n" + WORD_COUNT.replace("line.split()", "neighbour.words(line)")
    program = write(tmp_path, text + BUILT)
    with embedded_broker(tmp_path) as address, Client(address) as client:
        for topic in ("lines", "counts"):
            Admin(client).create_topic(topic, queues=2)
        for line in LINES:
            Producer(client).send(Message(topic="lines", body=line.encode()))
        done = headrace("run", str(program), "--until-caught-up", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Caught up: 3 records in" in done.stderr
        assert counts_of(client) == Counter(" ".join(LINES).split())


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("raises", "options", "says"),
    [
        ("ValueError('poison')", (), "ValueError: poison"),
        (
            "RollbackError('the server is away')",
            ("--rollback-retries", "1"),
            "the job stops: 1 roll-backs to batch 0 did not help (setting rollback_retries)",
        ),
    ],
    ids=["poison record", "retries used up"],
)
def test_job_that_failed_for_good_is_not_started_again(
    tmp_path: Path, raises: str, options: tuple[str, ...], says: str
) -> None:
    """The end of TX14: a status that is not 0, nothing committed, and no restart."""
    text = f"""
from headrace.errors import RollbackError

def words(line):
    raise {raises}
"""
    program = write(tmp_path, text + WORD_COUNT.replace("line.split()", "words(line)") + BUILT)
    with embedded_broker(tmp_path) as address, Client(address) as client:
        for topic in ("lines", "counts"):
            Admin(client).create_topic(topic, queues=1)
        Producer(client).send(Message(topic="lines", body=b"to be"))
        done = headrace("run", str(program), *options, folder=tmp_path)
        assert done.returncode == 1, done.stderr
        assert says in done.stderr
        assert "starting another one" not in done.stderr
        assert counts_of(client) == {}
        (job,) = Admin(client).jobs()
        assert job.record.batch == 0


def test_all_that_keeps_a_job_from_starting_is_told_before_java_starts(tmp_path: Path) -> None:
    program = write(tmp_path, WORD_COUNT + BUILT)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/java-began\nexit 1\n")
    java.chmod(0o700)
    own = {"JAVA_HOME": str(java.parent.parent), "PATH": str(java.parent)}
    done = headrace("run", str(program), "--partitions", "2", folder=tmp_path, own=own)
    assert done.returncode == 1
    assert "job 'word-count' cannot start, for 2 reasons:" in done.stderr
    assert "reads topic 'lines', which does not exist" in done.stderr
    assert f"source 'source-lines' (made at {program}:6)" in done.stderr
    for topic in ("lines", "counts"):
        command = f"headrace topic create {topic} --data-dir {tmp_path} --queues 2"
        assert f"make it: {command}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "java-began").exists()


def test_what_kept_a_job_from_starting_is_looked_for_again(tmp_path: Path) -> None:
    topology = load_program(write(tmp_path, WORD_COUNT + BUILT)).topology
    assert isinstance(topology, Topology)
    with embedded_broker(tmp_path) as address, Client(address):
        settings = JobSettings(namesrv=address, data_dir=tmp_path)
        with StreamJob(topology, settings) as job:
            assert len(job.problems()) == 2
            assert job.create_topics() == ["lines", "counts"]
            assert job.problems() == []


@pytest.mark.timeout(240)
def test_missing_topics_are_made_where_that_is_asked_for(tmp_path: Path) -> None:
    table = 'builder.table("people", serdes.string).to_stream().sink("names", serdes.string)\n'
    program = write(tmp_path, WORD_COUNT + table + BUILT)
    with embedded_broker(tmp_path) as address, Client(address) as client:
        admin = Admin(client)
        admin.create_topic("lines", queues=1)
        Producer(client).send(Message(topic="lines", body=b"to be or not to be"))
        done = headrace(
            *("run", str(program), "--until-caught-up", "--create-topics", "--queues", "3"),
            folder=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        made = {topic: f"Topic {topic} was missing and is made" for topic in ("people", "counts")}
        assert all(text in done.stderr for text in made.values())
        assert "Topic lines" not in done.stderr
        assert counts_of(client) == {"to": 2, "be": 2, "or": 1, "not": 1}
        (people,) = admin.topic_config("people").values()
        assert people.attributes == {"cleanup.policy": "COMPACTION"}
        assert [len(client.queues(topic)) for topic in ("lines", "people", "counts")] == [1, 3, 3]
        topology = load_program(program).topology
        assert isinstance(topology, Topology)
        with StreamJob(topology, JobSettings(namesrv=address)) as job:
            assert job.create_topics() == []
