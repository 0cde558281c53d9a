"""Every thread and task that lives as long as its owner: its end is the end of what waits for it."""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.broker.__main__ as broker_main
import headrace.cli._broker as cli_broker
from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.cli.progress import _repeated
from headrace.client import (
    Admin,
    AsyncClient,
    AsyncGroupConsumer,
    AsyncPushConsumer,
    AsyncTableReader,
    AsyncTransactionProducer,
    Client,
    Message,
    Producer,
    PushOptions,
)
from headrace.client.blocking import LoopThread
from headrace.connect.channel import ChildEnd, HostCommand
from headrace.connect.connectors.http._server import Arrival
from headrace.connect.connectors.http.source import Journal, JournaledInbox
from headrace.connect.connectors.sharing import ShareWatch
from headrace.connect.coordination import Cluster as WorkerCluster
from headrace.connect.hosts.channel import Serving
from headrace.connect.hosts.host import OutsideValues
from headrace.connect.hosts.life import Life, RunningUnit
from headrace.connect.lifecycle import Failed
from headrace.connect.log import TopicUsed
from headrace.connect.log.topic import TopicLog
from headrace.connect.plugins import Connector
from headrace.connect.running import joined_cluster, running_worker
from headrace.errors import ConnectError, StoreFailedError
from headrace.leases import boot_time
from headrace.runtime.commit.drivers import Lease
from headrace.runtime.commit.journal.lease import DriverLease, LeaseTimes
from headrace.store import MessageStore
from tests.breaking import BrokenError, break_task, break_thread, soon
from tests.clusters import Cluster
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.running import quick_settings
from tests.store.samples import append_of, settings

SOURCE = Path(headrace.__file__).parent
SOON = 5.0


# The store


@contextlib.contextmanager
def broken_store(folder: Path, thread: str = "", **changes: Any) -> Iterator[MessageStore]:
    """Open a store of which one thread meets an error; a broker of other tests may be beside it."""
    others = threading.enumerate()
    with MessageStore.open(folder, settings(flush="sync", **changes)) as store:
        store.compact_topic("lines").result(SOON)
        store.append([append_of("lines", 0, [b"kept"])]).result(SOON)
        if thread:
            break_thread(thread, others)
        yield store
        soon(lambda: store.statistics().failure is not None)
        assert "BrokenError" in (store.statistics().failure or "")
        for wait in (
            lambda: store.append([append_of("lines", 0, [b"late"])]).result(SOON),
            lambda: store.commit_unit([], [append_of("lines", 0, [b"late"])]).result(SOON),
            lambda: store.delete_topic("lines").result(SOON),
        ):
            with pytest.raises(StoreFailedError, match="nobody had foreseen"):
                wait()
    with MessageStore.open(folder, settings()) as store:
        assert store.bounds("lines", 0).max_offset >= 1


def writer(folder: Path, _address: str) -> None:
    with broken_store(folder, "headrace-store") as store:
        error = store.append([append_of("lines", 0, [b"lost"])]).exception(SOON)
        assert isinstance(error, StoreFailedError)


def units(folder: Path, _address: str) -> None:
    others = threading.enumerate()
    with broken_store(folder, large_unit=1) as store:
        store.commit_unit([], [append_of("lines", 0, [b"large"])]).result(SOON)
        break_thread("headrace-store-units", others)
        error = store.commit_unit([], [append_of("lines", 0, [b"lost"])]).exception(SOON)
        assert isinstance(error, StoreFailedError)


def writer_in_a_checkpoint(folder: Path, _address: str) -> None:
    with broken_store(folder) as store:
        vars(store._catalog)["snapshot"] = _raise
        saved = store._writer.checkpoint()
        assert saved.result(SOON) is None


def checkpointer(folder: Path, _address: str) -> None:
    with broken_store(folder, "headrace-checkpoint") as store:
        assert store._writer.checkpoint().result(SOON) is None


def maintenance(folder: Path, _address: str) -> None:
    with broken_store(folder, "headrace-maintenance") as store:
        store._upkeep._maintenance.wake()


def keys(folder: Path, _address: str) -> None:
    with broken_store(folder, "headrace-keys") as store:
        store._indexing.wake()


def reput(folder: Path, _address: str) -> None:
    with broken_store(folder, "headrace-reput") as store:
        store._upkeep.reput._wake.set()


def _raise(*_given: object) -> Any:
    raise BrokenError


# The broker


def broker(folder: Path, _address: str, *, name: str, **given: Any) -> None:
    broker = EmbeddedBroker(folder, settings=BrokerSettings(**given))
    broker.start()
    assert broker._loop is not None
    host, port = broker.address.split(":")
    with socket.create_connection((host, int(port)), SOON) as client:
        asyncio.run_coroutine_threadsafe(break_task(name), broker._loop).result(SOON)
        assert client.recv(1) == b""
    with pytest.raises(BrokenError):
        broker.stop()


def broker_by_core(folder: Path, _address: str, *, name: str) -> None:
    """What lives now and then only is kept as the others are."""

    async def work() -> None:
        await asyncio.sleep(60)

    broker = EmbeddedBroker(folder)
    broker.start()
    assert broker._loop is not None
    core = broker._server._running()

    async def begin() -> None:
        core.work.keep(name, work())
        await break_task(name)

    asyncio.run_coroutine_threadsafe(begin(), broker._loop).result(SOON)
    with pytest.raises(BrokenError):
        broker.stop()


def broker_thread(folder: Path, _address: str) -> None:
    broker = EmbeddedBroker(folder)
    broker.start()
    assert broker._loop is not None
    # No loop holds that back.
    broker._loop.call_soon_threadsafe(sys.exit)
    with pytest.raises(SystemExit):
        broker.stop()


# The client


def client_loop(_folder: Path, _address: str) -> None:
    began = threading.Event()

    async def sleep() -> None:
        began.set()
        await asyncio.sleep(60)

    started = LoopThread()
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(started.call, sleep())
            assert began.wait(SOON)
            started.loop.call_soon_threadsafe(sys.exit)
            with pytest.raises(RuntimeError, match="SystemExit"):
                waiting.result(SOON)
        with pytest.raises(RuntimeError, match="SystemExit"):
            started.call(sleep())
    finally:
        started.loop.close()


def of_client(
    scenario: Callable[[AsyncClient, str, str], Awaitable[None]],
) -> Callable[..., None]:
    """Make a case of a scenario that has a client, a topic of its own and the name of a task."""

    def case(folder: Path, address: str, *, name: str) -> None:
        topic = f"watched-{folder.name}"
        with Client(address) as client:
            Admin(client).create_topic(topic, 1)
            Producer(client).send(Message(topic=topic, body=b"x"))

        async def body() -> None:
            async with AsyncClient(address) as client, asyncio.timeout(SOON):
                await scenario(client, topic, name)

        asyncio.run(body())

    return case


@of_client
async def group(client: AsyncClient, topic: str, name: str) -> None:
    async with AsyncGroupConsumer(client, topic, [topic]) as consumer:
        await break_task(name)
        with contextlib.suppress(BrokenError):
            while True:
                await consumer.poll(timedelta(seconds=SOON))
        with pytest.raises(BrokenError):
            await consumer.commit()


async def push(client: AsyncClient, topic: str, name: str, *, orderly: bool) -> None:
    heard = asyncio.Event()

    async def listen(_message: object) -> None:
        heard.set()

    options = PushOptions(orderly=orderly, start="first")
    consumer = AsyncPushConsumer(client, topic, [topic], listen, options)
    running = asyncio.create_task(consumer.run())
    await heard.wait()
    await break_task(name)
    with pytest.raises(BrokenError):
        await running


@of_client
async def producer(client: AsyncClient, topic: str, name: str) -> None:
    async with AsyncTransactionProducer(client, topic, _raise) as producer:
        await break_task(name)
        with pytest.raises(BrokenError):
            await producer.begin(Message(topic=topic, body=b"x"))


@of_client
async def table(client: AsyncClient, topic: str, name: str) -> None:
    async with AsyncTableReader(client, topic) as reader:
        await reader.caught_up()
        await break_task(name)
        with pytest.raises(BrokenError):
            await reader.wait_until(dict.fromkeys(await client.queues(topic), 99))


# Drivers


def lease(_folder: Path, _address: str) -> None:
    told: list[BaseException] = []
    lease = Lease(_Broken(), "job", "me")
    lease.on_failure = told.append
    lease.keep()
    soon(lambda: bool(told))
    driver = DriverLease(_Broken(), "job", "me", LeaseTimes())
    driver._term.renew(asked=boot_time() + 1000)
    driver.keep()
    soon(lambda: not driver.held())


class _Broken(Client):
    """A client that nothing can be asked of."""

    def __init__(self) -> None:
        pass

    def queues(self, *_given: object, **_more: object) -> Any:
        raise BrokenError


def progress(_folder: Path, _address: str) -> None:
    with pytest.raises(BrokenError), _repeated(_raise, 0.001):
        soon(lambda: not [one for one in threading.enumerate() if one.name == "headrace-progress"])


# Connect


def worker(folder: Path, address: str, *, name: str) -> None:
    async def body() -> None:
        settings = quick_settings(data=folder, group=f"watched-{folder.name}")
        async with (
            AsyncClient(address) as client,
            joined_cluster(client, settings) as cluster,
            running_worker(settings, FakeLauncher(), cluster) as running,
        ):
            await break_task(name)
            if name == "connect-follower":
                # Without a log it does what it did, and says so.
                assert "BrokenError" in repr(running.connect.worker._follower.lost)
                assert running.connect.worker.trouble() is not None
                raise BrokenError
            await asyncio.wait_for(running.until_asked(), SOON)

    with pytest.raises(BrokenError):
        asyncio.run(body())


@of_client
async def topic_log(client: AsyncClient, topic: str, name: str) -> None:
    log = await TopicLog.open(client, f"{topic}-log")
    try:
        await break_task(name)
        with pytest.raises(ConnectError, match="BrokenError"):
            await log.append(TopicUsed(name="a", topic="b"))
    finally:
        await log.close()


@of_client
async def cluster(client: AsyncClient, topic: str, name: str) -> None:
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    joined = await WorkerCluster.join(client, topic, "w1")
    joined.watch(told.set_result)
    try:
        await break_task(name)
        assert isinstance(await told, BrokenError)
    finally:
        await joined.leave()


def journal(folder: Path, _address: str) -> None:
    async def body() -> None:
        journal = Journal(folder, 0)
        vars(journal)["append"] = _raise
        inbox = JournaledInbox(journal, 10)
        assert not await asyncio.wait_for(inbox.offer(Arrival(values=[1])), SOON)
        assert isinstance(inbox.failure, BrokenError)
        inbox.close()

    asyncio.run(body())


class _Nothing(RunningUnit):
    @property
    def instance(self) -> Connector:
        raise AssertionError

    def make(self) -> None: ...
    def make_instance(self) -> None: ...
    def start(self) -> str:
        return ""

    def work(self) -> None: ...
    def stop(self) -> None: ...
    def wake(self) -> None: ...


def probe(_folder: Path, _address: str) -> None:
    worker, host = socket.socketpair()
    with worker, host:
        worker.settimeout(SOON)
        control = ChildEnd(host, HostCommand)
        life = Life(control, "task 0 of connector 'a'", probe=0.005)
        life._tell_failed = lambda cause: life.control.tell(Failed(cause))  # type: ignore[method-assign]
        life._watch_health(_Nothing())
        break_thread("headrace-probe")
        told = b""
        while b'"type":"Failed"' not in told:
            told = worker.recv(65536)
        assert b"BrokenError" in told
        life.stopping.set()
        control._lines.close()


def outside(_folder: Path, _address: str) -> None:
    told: list[BaseException] = []
    values = OutsideValues({"password": "${env:HOME}"})
    values.watch(_raise, threading.Event(), 0.005, told.append)
    break_thread("headrace-outside")
    soon(lambda: bool(told))


def serving(folder: Path, _address: str) -> None:
    told: list[BaseException] = []
    serving = Serving(folder / "data.sock", _raise, told.append)
    serving._listener.shutdown(socket.SHUT_RDWR)
    soon(lambda: bool(told))
    serving.close()


def topic_watch(_folder: Path, _address: str) -> None:
    reasons: list[str] = []

    class Context:
        stopping = threading.Event()

        def fail(self, reason: str) -> None:
            reasons.append(reason)

    ShareWatch(Context(), _raise, timedelta(seconds=60)).start()  # type: ignore[arg-type]
    soon(lambda: bool(reasons))
    assert "BrokenError" in reasons[0]


Case = Callable[[Path, str], None]

CASES: dict[str, Case] = {
    "headrace-store": writer,
    "headrace-store in a checkpoint": writer_in_a_checkpoint,
    "headrace-store-units": units,
    "headrace-checkpoint": checkpointer,
    "headrace-maintenance": maintenance,
    "headrace-keys": keys,
    "headrace-reput": reput,
    "headrace-broker": broker_thread,
    "headrace-client": client_loop,
    "headrace-lease": lease,
    "headrace-progress": progress,
    "headrace-probe": probe,
    "headrace-outside": outside,
    "headrace-data": serving,
    "topics": topic_watch,
    "http-journal": journal,
}
for _name in ("connections", "saving", "delays", "half-messages", "expiry"):
    CASES[f"broker-{_name}"] = partial(broker, name=f"broker-{_name}")
for _name in ("follower", "tables", "rebuilder"):
    CASES[f"broker-{_name}"] = partial(broker, name=f"broker-{_name}", follow="127.0.0.1:1")
CASES["broker-announcer"] = partial(broker, name="broker-announcer", name_servers=("127.0.0.1:1",))
for _name in ("broker-rules", "broker-telling", "broker-ends"):
    CASES[_name] = partial(broker_by_core, name=_name)
for _name in ("group-heartbeats", "group-share", "group-commits", "group-fetcher"):
    CASES[_name] = partial(group, name=_name)
for _name in ("push-commits", "push-reader", "push-worker"):
    CASES[_name] = partial(of_client(partial(push, orderly=False)), name=_name)
for _name in ("push-locks", "push-queue"):
    CASES[_name] = partial(of_client(partial(push, orderly=True)), name=_name)
CASES["producer-heartbeats"] = partial(producer, name="producer-heartbeats")
CASES["table"] = partial(table, name="table")
for _name in ("connect-rest", "connect-follower", "connect-outbox", "connect-passes"):
    CASES[_name] = partial(worker, name=_name)
for _name in ("connect-log-reader", "connect-log-end"):
    CASES[_name] = partial(topic_log, name=_name)
for _name in ("heartbeat", "follower", "listener", "turns"):
    _full = "connect-heartbeat" if _name == "heartbeat" else f"coordinator-{_name}"
    CASES[_full] = partial(cluster, name=_full)


IN_PROCESSES = "ends its process: see test_process_that_waits_for_a_thread_ends_with_it"

#: Where threads and tasks are watched, and the cases that break them; or what else shows it.
WATCHED: dict[str, str | tuple[str, ...]] = {
    "broker/embedded.py": ("headrace-broker",),
    "broker/naming/announcing.py": ("broker-announcer",),
    "broker/replication/follower.py": ("broker-follower", "broker-tables", "broker-rebuilder"),
    "broker/replication/promotion.py": ("broker-telling",),
    "broker/server.py": (
        *("broker-connections", "broker-rules", "broker-saving", "broker-delays"),
        *("broker-half-messages", "broker-expiry"),
    ),
    "broker/waiting.py": ("broker-connections",),
    "broker/half_messages/service.py": ("broker-ends",),
    "cli/_groups.py": "its end closes the consumer, whose loop then raises it",
    "cli/progress.py": ("headrace-progress",),
    "cli/supervision/channel.py": IN_PROCESSES,
    "client/_consuming.py": ("push-worker", "push-queue"),
    "client/_intake.py": ("push-reader",),
    "client/blocking.py": ("headrace-client",),
    "client/_push_engine.py": ("push-commits", "push-locks"),
    "client/_sharing.py": ("group-heartbeats", "group-share"),
    "client/groups.py": ("group-commits", "group-fetcher"),
    "client/tables.py": ("table",),
    "client/transactions.py": ("producer-heartbeats",),
    # What listens to the worker ends its process, as those above.
    "connect/channel.py": "tests/connect/hosts/test_sharing.py",
    "connect/connectors/sharing.py": ("topics",),
    "connect/connectors/http/source.py": ("http-journal",),
    "connect/connectors/http/_server.py": "the task's next poll raises it",
    "connect/connectors/rocketmq/source.py": "whoever takes raises it: tests of the source",
    "connect/coordination/coordinator.py": (
        *("coordinator-follower", "coordinator-listener", "coordinator-turns"),
    ),
    "connect/coordination/members.py": ("connect-heartbeat",),
    "connect/data/engine.py": "the worker hears that the task's query has ended",
    "connect/data/jobs.py": IN_PROCESSES,
    # Its other ones: tests/connect/hosts/test_sharing.py.
    "connect/hosts/host.py": ("headrace-outside",),
    "connect/hosts/life.py": ("headrace-probe",),
    "connect/hosts/process_host.py": "tests/connect/hosts/test_crashes.py",
    "connect/hosts/channel.py": ("headrace-data",),
    "connect/log/topic.py": ("connect-log-reader", "connect-log-end"),
    "connect/rest/server.py": ("connect-rest",),
    "connect/worker/following.py": ("connect-follower",),
    "connect/worker/outbox.py": ("connect-outbox",),
    "connect/worker/planning.py": ("connect-passes",),
    "runtime/commit/drivers.py": ("headrace-lease",),
    "spark/batches/function_worker.py": IN_PROCESSES,
    "spark/batches/runner.py": "the sink has stopped, and who waits for it hears why",
    "spark/session.py": "Java prints to nobody, instead of waiting for a reader",
    "spark/job.py": "tests/spark/test_job.py",
    "store/requests.py": ("headrace-store-units",),
    "store/checkpoint.py": ("headrace-checkpoint",),
    "store/maintenance.py": ("headrace-maintenance", "headrace-keys"),
    "store/reput.py": ("headrace-reput",),
    "store/writer.py": ("headrace-store", "headrace-store in a checkpoint"),
}

#: What ends by itself, soon, or is awaited where it is made.
SHORT: dict[str, str] = {
    "broker/waiting.py": "requests, which answer whatever happens",
    "broker/network/listener.py": "one connection's greeting",
    "broker/server.py": "the broker's own end, which is awaited",
    "cli/connect/worker.py": "a worker's start, which is awaited",
    "cli/supervision/channel.py": "until the first commit",
    "client/blocking.py": "a call, which is awaited",
    "client/pulling.py": "pulls, which are awaited",
    "client/_connection.py": "a connection that is opened, which is awaited",
    "client/push.py": "the consumer's own end, which is awaited",
    "client/transactions.py": "an answer to a broker, which asks again",
    "connect/connectors/rocketmq/source.py": "awaited by the reading",
    "connect/data/plane.py": "one order to the engine",
    "connect/hosts/life.py": "one probe, whose patience ends",
    "connect/hosts/channel.py": "one connection, which its end closes",
    "connect/running.py": "the worker's own end, which is awaited",
    "connect/worker/roster.py": "one question or removal, which is tried again",
    "connect/worker/launching.py": "one start or end of a host",
    "connect/worker/worker.py": "one record, or one start",
    "runtime/user_code.py": "awaited together",
}


def calls_in(path: Path) -> set[str]:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for call in calls
    }


def test_every_thread_and_task_is_watched_or_short() -> None:
    made, watched = {"Thread", "create_task", "ensure_future"}, {"watched_thread", "watched_task"}
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    calls = {
        str(path.relative_to(SOURCE)): calls_in(path)
        for path, text in texts.items()
        if any(word in text for word in {"keep", *made, *watched})
    }
    del calls["watched.py"]
    keeps = {name for name in calls if name.startswith("broker/") and "keep" in calls[name]}
    assert {name for name, found in calls.items() if found & made} == set(SHORT)
    assert {name for name, found in calls.items() if found & watched} | keeps == set(WATCHED)
    named = [case for cases in WATCHED.values() if not isinstance(cases, str) for case in cases]
    assert set(named) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_end_of_what_lives_long_is_the_end_of_what_waits_for_it(
    name: str, tmp_path: Path, embedded: Cluster
) -> None:
    CASES[name](tmp_path, embedded.namesrv)


@pytest.mark.parametrize("command", ["headrace broker", "python -m headrace.broker"])
def test_command_ends_with_what_has_ended_its_broker(
    command: str, tmp_path: Path, embedded: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    given = argparse.Namespace(data=tmp_path, port=0, until_eof=False)
    settings = BrokerSettings()
    serving = (
        cli_broker._serve(tmp_path, 0, settings)
        if command == "headrace broker"
        else broker_main._serve(given, settings)
    )

    async def body() -> None:
        served = asyncio.ensure_future(serving)
        await break_task("broker-saving")
        done, _ = await asyncio.wait({served}, timeout=SOON)
        assert done
        await served

    with pytest.raises(BrokenError):
        asyncio.run(body())
    assert "listening on" in capsys.readouterr().out


def test_process_that_waits_for_a_thread_ends_with_it() -> None:
    program = (
        "import threading\n"
        "from headrace.watched import end_process, watched_thread\n"
        "watched_thread(lambda: [][1], name='example', on_failure=end_process).start()\n"
        "threading.Event().wait()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert b"IndexError: list index out of range" in ended.stderr
