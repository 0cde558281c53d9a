"""Secrets of a job stay out of all that others may see: pages, logs, command lines, topics."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, ClientSettings, Message, Producer, PullConsumer
from tests.cli.ports import free_port
from tests.faults.harness import await_true

PROGRAM = """
from headrace import StreamBuilder, serdes

builder = StreamBuilder("hushed")
(
    builder.source("lines", serdes.string)
    .flat_map_values(str.split)
    .key_by(str.lower)
    .count()
    .to_stream()
    .sink("counts", serdes.pickle)
)
"""
RULES = """
accounts:
- {{accessKey: operator, secretKey: {}, admin: true}}
"""
#: Processes that must have been looked at: a driver's Java, an executor, its Python.
PROCESSES = ("SparkSubmit", "CoarseGrainedExecutorBackend", "headrace.spark.daemon", "--channel")
#: Addresses of Spark's pages, and of what they are made of.
PAGES = (
    *("environment/", "jobs/", "stages/", "executors/", "SQL/", "StreamingQuery/", "storage/"),
    *(
        f"api/v1/applications/{{app}}/{name}"
        for name in ("environment", "jobs", "stages", "allexecutors")
    ),
    "api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000",
)


class Search:
    """Looks for secrets, as they are or encoded."""

    def __init__(self, hidden: dict[str, str]) -> None:
        self._patterns = {
            name: re.compile(b"|".join(map(re.escape, encodings(text))))
            for name, text in hidden.items()
        }
        #: Where each secret was found, and where it was looked for.
        self.found: dict[str, set[str]] = defaultdict(set)
        self.looked: set[str] = set()

    def look(self, place: str, content: bytes) -> None:
        if content:
            self.looked.add(place)
        for name, pattern in self._patterns.items():
            if pattern.search(content):
                self.found[place].add(name)

    def look_below(self, place: str, folder: Path, but: Iterable[str] = ()) -> None:
        for file in folder.rglob("*"):
            if file.is_file() and not set(but) & set(file.relative_to(folder).parts):
                self.look(place, file.read_bytes())


def encodings(text: str) -> set[bytes]:
    """Give the bytes that tell of a text: plain, hexadecimal, Base64 wherever it begins."""
    plain = text.encode()
    shifted = {
        # What lies on the bounds depends on what is beside it.
        base64.b64encode(b"\0" * shift + plain)[4:-4]
        for shift in range(3)
    }
    return {plain, plain.hex().encode(), plain.hex().upper().encode(), *shifted}


def command_lines(but: int) -> Iterator[bytes]:
    """Give those of all processes but one, and but its own forks that have yet to become another."""
    own = Path(f"/proc/{but}/cmdline").read_bytes()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes()
            if int(process.name) != but and line != own:
                yield line


@contextlib.contextmanager
def watching(search: Search, but: int) -> Iterator[set[str]]:
    """Read the command lines of all processes, again and again; give which were seen."""
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for line in command_lines(but):
                search.look("command lines", line)
                seen.update(name for name in PROCESSES if name.encode() in line)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def pages(port: int) -> Iterator[tuple[str, bytes]]:
    def page(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            content: bytes = answer.read()
            return content

    (application,) = json.loads(page("api/v1/applications"))
    for path in PAGES:
        yield path, page(path.format(app=application["id"]))


def test_the_search_finds_what_is_encoded() -> None:
    secret = secrets.token_urlsafe(24)
    before, after = b"before" * 3, b"after"
    for size in range(3):
        whole = before[size:] + secret.encode() + after
        for name, text in {
            "plain": whole,
            "hex": whole.hex().encode(),
            "base64": base64.b64encode(whole),
        }.items():
            search = Search({"s": secret})
            search.look(name, text)
            assert search.found == {name: {"s"}}
    search = Search({"s": secret})
    search.look("other", secrets.token_urlsafe(2000).encode() * 2)
    assert search.found == {}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("hides", [True, False], ids=["as it is", "nothing hidden"])
def test_secrets_are_nowhere_where_others_look(tmp_path: Path, hides: bool) -> None:
    names = ("secret_key", "security_token", "pickle_secret", "spark", "storage")
    hidden = {name: secrets.token_hex(20) for name in names}
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES.format(hidden["secret_key"]))
    program = tmp_path / "hushed.py"
    program.write_text(PROGRAM)
    port, events, data = free_port(), tmp_path / "events", tmp_path / "job"
    events.mkdir()
    config = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        # Nothing is found in what is compressed.
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.memory": "512m",
        "spark.authenticate.secret": hidden["spark"],
        "spark.hadoop.fs.s3a.secret.key": hidden["storage"],
    } | ({} if hides else {"spark.redaction.regex": "nothing at all"})
    search = Search(hidden)
    settings = BrokerSettings(flush="async", acl=rules)
    with EmbeddedBroker(tmp_path / "broker", settings=settings) as broker:
        keys = ClientSettings(access_key="operator", secret_key=hidden["secret_key"])
        with Client(broker.address, keys) as client, (tmp_path / "said").open("wb") as said:
            for topic in ("lines", "counts"):
                Admin(client).create_topic(topic, queues=1)
            Producer(client).send(Message(topic="lines", body=b"to be or not to be"))
            command = [sys.executable, "-m", "headrace", "run", str(program)]
            command += ["--namesrv", broker.address, "--data-dir", str(data), "--partitions", "1"]
            command += ["--master", "local-cluster[1,1,1024]", "--access-key", "operator"]
            command += ["--secret-key", hidden["secret_key"]]
            command += [f"--pickle-secret={hidden['pickle_secret']}"]
            command += [f"--spark-config={name}={value}" for name, value in config.items()]
            own = {"HEADRACE_SECURITY_TOKEN": hidden["security_token"]}
            run = subprocess.Popen(command, env=os.environ | own, stdout=said, stderr=said)
            try:
                # A person's own command line is what that person has written.
                with watching(search, run.pid) as seen:
                    await_counts(client, run)
                    for page, content in pages(port):
                        search.look(page.partition("?")[0], content)
            finally:
                run.send_signal(signal.SIGTERM)
                status = run.wait(60)
    assert status == 0, (tmp_path / "said").read_text()
    assert seen == set(PROCESSES)
    (event_log,) = events.iterdir()
    application = event_log.name.removeprefix("eventlog_v2_")
    executors = Path(pyspark.__file__).parent / "work" / application
    search.look_below("event log", events)
    search.look_below("job's folder", data, but=["secrets"])
    search.look_below("broker's folder", tmp_path / "broker")
    search.look_below("executors' logs", executors)
    search.look("terminal", (tmp_path / "said").read_bytes())
    assert search.looked == {
        *(page.partition("?")[0] for page in PAGES),
        *("command lines", "event log", "job's folder", "broker's folder"),
        *("executors' logs", "terminal"),
    }
    if hides:
        assert search.found == {}
    else:
        # Spark's own rule hides its secrets, and what it takes for ours we leave out by.
        spark = {"spark", "storage"}
        assert search.found["command lines"] == search.found["event log"] == spark
        assert search.found["api/v1/applications/{app}/environment"] == spark
        assert not set().union(*search.found.values()) - spark


def await_counts(client: Client, run: subprocess.Popen[bytes]) -> None:
    (queue,) = client.queues("counts")
    consumer = PullConsumer(client)

    def there() -> bool:
        assert run.poll() is None, "it has ended"
        return consumer.end_offset(queue) > 3

    await_true("counts", there)
