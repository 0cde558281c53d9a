"""Servers that a whole run shares: one of each kind, started by the first test that needs it.

A pytest plugin, and a program.  ``python -m tests.run.servers KIND`` starts a server, writes where
it is into the folder of the run, and stops it when the run ends, however it ends: it holds the
reading end of a pipe that the process which leads the run holds open.  Those that the tests of a
run will ask for are started at once, beside the first tests, which need none.

Tests share a server by names of their own: topics, databases, buckets and indices that no other
test has.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clusters import Cluster, missing_tool, require_rocketmq, running_rocketmq

#: The folder of this run, where its processes keep what they share.
FOLDER = "TESTS_FOLDER"
#: Another one in memory, where there is such a place.
MEMORY = "TESTS_MEMORY"

_LIFE = "life"
#: How many tests of the run ask for each kind.
_WANTED = pytest.StashKey[Counter[str]]()
#: The first run may have to fetch what a server is made of.
_PATIENCE = 900.0
_ROOT = Path(__file__).parents[2]

#: How long a lock holds on the cluster of short leases, in seconds.
LEASE = 4
#: Bytes of a file of the log on the cluster that forgets.
SEGMENT = 4 << 20

#: Servers that no test holds on to behind its end.  An idle RocketMQ takes a twelfth of a core: those
#: that few tests ask for end with the last of them.
_ENDS_EARLY = ("rocketmq_of_short_leases", "rocketmq_that_forgets")

Where = Mapping[str, Any]


@contextmanager
def _cluster(*settings: str, java: str = "") -> Iterator[Where]:
    folder = Path(os.environ[FOLDER]) / f"rocketmq-{os.getpid()}"
    folder.mkdir()
    with running_rocketmq(folder, *settings, java=java) as cluster:
        yield {"namesrv": cluster.namesrv}


@contextmanager
def _postgres() -> Iterator[Where]:
    from tests.connect.servers.postgres import running_postgres

    with running_postgres() as server:
        yield {"port": server.port, "folder": str(server.folder), "pid": server.pid}


@contextmanager
def _kafka() -> Iterator[Where]:
    from tests.connect.servers.kafka import running_kafka

    with running_kafka() as server:
        yield {"address": server.address}


@contextmanager
def _s3() -> Iterator[Where]:
    from tests.connect.servers.s3 import running_s3

    with running_s3() as server:
        yield {"endpoint": server.endpoint}


@contextmanager
def _search(kind: str) -> Iterator[Where]:
    from tests.connect.servers.search import running_search

    with running_search(kind) as server:
        yield {"url": server.url}


@contextmanager
def _spark_classes() -> Iterator[Where]:
    """Have Java keep Spark's classes, where nobody has: each Spark starts in half the time then."""
    from headrace.java import use_java
    from headrace.spark.class_archive import archive_of
    from headrace.spark.job import make_archive

    # As it is made for users.
    os.environ.pop("JAVA_TOOL_OPTIONS", None)
    path = archive_of(use_java())
    if not path.exists():
        make_archive()
    yield {"path": str(path)}


#: By the names of the fixtures that ask for them.
SERVERS: Mapping[str, Callable[[], AbstractContextManager[Where]]] = {
    # Half messages are asked about within seconds, not half minutes.
    "rocketmq": partial(
        _cluster,
        "transactionTimeOut=300",
        "transactionCheckInterval=300",
        "transactionOpBatchInterval=100",
    ),
    "rocketmq_of_short_leases": partial(
        _cluster, java=f"-Drocketmq.broker.rebalance.lockMaxLiveTime={LEASE * 1000}"
    ),
    # It looks every ten seconds otherwise; in its first minute it never does.
    "rocketmq_that_forgets": partial(
        _cluster, f"mappedFileSizeCommitLog={SEGMENT}", "cleanResourceInterval=200"
    ),
    "postgres": _postgres,
    "kafka": _kafka,
    "storage": _s3,
    "opensearch": partial(_search, "opensearch"),
    "elasticsearch": partial(_search, "elasticsearch"),
    # Nobody waits for it.
    "spark_classes": _spark_classes,
}


def shared(kind: str) -> Where:
    """Return where the run's server of a kind is; start it where nobody has."""
    order(kind)
    where = _file(kind, "json")
    deadline = time.monotonic() + _PATIENCE
    while not where.exists():
        said = _file(kind, "log").read_text()
        assert _lives(int(_file(kind, "pid").read_text())), f"{kind} did not start:\n{said}"
        assert time.monotonic() < deadline, f"{kind} is not there after {_PATIENCE:.0f} s:\n{said}"
        time.sleep(0.02)
    found: Where = json.loads(where.read_text())
    return found


def order(kind: str) -> None:
    """Have a server started, without waiting for it."""
    with _file(kind, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _file(kind, "pid").exists():
            return
        with _file(kind, "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, kind],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                start_new_session=True,
            )
        _file(kind, "pid").write_text(str(process.pid))
        # It outlives this process, whose end would be told of a child that still runs.
        process.returncode = 0


def starting() -> bool:
    """Whether some server has been ordered that is not there yet."""
    return any(
        _lives(int(ordered.read_text() or 0))
        for ordered in Path(os.environ[FOLDER]).glob("server-*.pid")
        if not ordered.with_suffix(".json").exists()
    )


@contextmanager
def life() -> Iterator[None]:
    """Let servers live for so long.  Caller: the process that leads the run."""
    path = Path(os.environ[FOLDER]) / _LIFE
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(held)
        for suffix in ("pid", "ended"):
            for file in Path(os.environ[FOLDER]).glob(f"server-*.{suffix}"):
                _await_end(int(file.read_text()))


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + 30
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    if _lives(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """Whether a process runs, and is not one that has ended and waits for its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _file(kind: str, suffix: str) -> Path:
    return Path(os.environ[FOLDER]) / f"server-{kind}.{suffix}"


def _serve(kind: str) -> None:
    """Be the keeper of a server until the run ends."""
    # Ctrl-C ends the run, and the run ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    pipe = os.open(Path(os.environ[FOLDER]) / _LIFE, os.O_RDONLY)
    with SERVERS[kind]() as where:
        draft = _file(kind, "draft")
        draft.write_text(json.dumps(dict(where)))
        draft.rename(_file(kind, "json"))
        os.read(pipe, 1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start what the tests of this run will ask for."""
    if session.config.option.collectonly:
        return
    wanted = Counter(name for item in session.items for name in _asked(item))
    session.config.stash[_WANTED] = wanted
    if any(item.get_closest_marker("spark") for item in session.items):
        wanted["spark_classes"] += 1
    for kind in SERVERS:
        if kind in wanted and not ("rocketmq" in kind and missing_tool()):
            order(kind)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a server behind the last test that asks for it, whichever process that runs in."""
    try:
        return (yield)
    finally:
        wanted = item.config.stash.get(_WANTED, Counter())
        for kind in _asked(item).intersection(_ENDS_EARLY):
            with _file(kind, "done").open("ab") as done:
                done.write(b".")
            if _file(kind, "done").stat().st_size == wanted[kind]:
                _end(kind)


def _end(kind: str) -> None:
    with _file(kind, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _file(kind, "pid").exists():
            # Whoever asks for one yet has another started.
            ended = _file(kind, "pid").rename(_file(kind, "ended"))
            _file(kind, "json").unlink(missing_ok=True)
            os.kill(int(ended.read_text()), signal.SIGTERM)


def asks_for_a_server_that_ends_early(item: pytest.Item) -> bool:
    """Tell whether a server ends sooner, the sooner a test has run."""
    return not _asked(item).isdisjoint(_ENDS_EARLY)


def _asked(item: pytest.Item) -> set[str]:
    names = set(getattr(item, "fixturenames", ()))
    call = getattr(item, "callspec", None)
    # What fixtures ask for by name at run time.
    return names | {str(value) for value in (call.params.values() if call else ())}


@pytest.fixture(scope="session")
def rocketmq() -> Cluster:
    """A real RocketMQ; ``ROCKETMQ_NAMESRV`` names one that runs."""
    if running := os.environ.get("ROCKETMQ_NAMESRV"):
        return Cluster("rocketmq", running)
    require_rocketmq()
    return Cluster("rocketmq", shared("rocketmq")["namesrv"])


@pytest.fixture(scope="session")
def rocketmq_of_short_leases() -> Cluster:
    """A real RocketMQ whose locks expire soon."""
    require_rocketmq()
    return Cluster("rocketmq", shared("rocketmq_of_short_leases")["namesrv"])


@pytest.fixture(scope="session")
def rocketmq_that_forgets() -> Cluster:
    """A real RocketMQ that forgets all but its newest messages when it is told to."""
    require_rocketmq()
    return Cluster("rocketmq", shared("rocketmq_that_forgets")["namesrv"])


@pytest.fixture(scope="session")
def postgres() -> Any:
    """A PostgreSQL: a ``PostgresServer``, for databases of single tests."""
    from tests.connect.servers.postgres import PostgresServer

    where = shared("postgres")
    return PostgresServer(where["port"], Path(where["folder"]), where["pid"])


@pytest.fixture(scope="session")
def kafka() -> Any:
    """A Kafka: a ``KafkaServer``, for topics of single tests."""
    from tests.connect.servers.kafka import KafkaServer

    return KafkaServer(shared("kafka")["address"])


@pytest.fixture(scope="session")
def storage() -> Iterator[Any]:
    """Storage that speaks S3: an ``S3Server``, for buckets of single tests."""
    import httpx

    from tests.connect.servers.s3 import S3Server

    with httpx.Client(trust_env=False, timeout=60) as http:
        yield S3Server(shared("storage")["endpoint"], http)


@pytest.fixture(scope="session", params=["opensearch", "elasticsearch"])
def node(request: pytest.FixtureRequest) -> Any:
    """A node of each kind in turn: a ``SearchServer``, for indices of single tests."""
    from tests.connect.servers.search import SearchServer

    return SearchServer(shared(request.param)["url"])


if __name__ == "__main__":
    _serve(sys.argv[1])
