"""The faults that connectors meet in tests, and the page of what each cost, which they measure.

``python -m tests.connect.data.faults > docs/explanation/connect-faults.md`` writes the page anew.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.connect.data.flows import CONNECTORS, Scene
from tests.connect.servers.gate import Way

__all__ = ["FAULTS", "RECORDED", "Cell", "Fault", "page", "read", "record"]

#: What runs have measured.
RECORDED = Path(__file__).with_name("faults.json")
_POSTGRES = ("pg-sink", "pg-source")
_KAFKA = ("kafka-sink", "kafka-source")
#: A port, an address in memory, a time: they tell nothing, and differ each time.
_OF_THE_RUN = re.compile(r"\b\d{4,}\b")
_LONGEST = 130
#: Where a source of Kafka says that people should have it go on.
_POSITION = re.compile(r"'kafka_offset': (\d+)")
_HEAD = """# What faults cost

This page shows, to those who run Connect, how soon each connector recovers from a fault, and whether rows are lost or doubled.
Nine connectors of one worker move rows while their peer (the outside system that they read or write), the worker, or a part of the worker fails.
The peer of the `rocketmq` connectors is another cluster, and that of `files-sink` a bucket.
This page shows how soon each connector recovers, and whether rows were lost or doubled.

Each cell of the table says how many seconds after the end of the fault new rows of the connector arrived again, and how many rows were lost or doubled, if any.
The column "nothing" shows the usual delay of a row.

"Lost" and "doubled" compare the rows at the other end with the connector's input: the rows in the topic, table or cluster that it reads.
The input begins seconds before the fault and ends when rows of all connectors move again.
`http-sink` only guarantees at least once, so it may double rows; all others must not.
"Not tried" marks faults that the tests cannot cause in a peer: S3 and OpenSearch have no second server here that could take over their address, and neither they nor the brokers of the other cluster lose what they have confirmed.

All processes shared two cores with other tests at a load of 15 to 45, with up to 50 rows a second for each connector.
`make soak ARGS=tests/connect/data/test_healing.py` causes all faults, `make test-all` those with a star.
With `FAULTS_RECORDED=1` either records its measurements, and `python -m tests.connect.data.faults > docs/explanation/connect-faults.md` generates this page from them.
"""


def _nothing(scene: Scene) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong for a while."""

    name: str
    #: What is done, in a sentence.
    done: str
    strike: Callable[[Scene], None]
    end: Callable[[Scene], None]
    #: Puts right what is still wrong when all rows move again.
    then: Callable[[Scene], None] = _nothing
    #: From the strike to its end.
    seconds: float = 0.0
    #: Whose peers it concerns.
    connectors: tuple[str, ...] = CONNECTORS
    #: Whether tasks stay in their processes, and are `RUNNING`, all the time.
    keeps: bool = True
    #: Whether each task says by the end what it waits for.
    told: bool = False
    #: Whether peers lose what they have confirmed.
    loses: bool = False
    #: Whether `make test-all` has it.
    brief: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        """Name it as the page does."""
        return f"{self.name} *" if self.brief else self.name


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault cost a connector."""

    rows_in: int
    rows_out: int
    doubled: int
    lost: int
    #: Seconds; None: they did not, for as long as the test waited.
    moves_after: float | None
    #: In the order in which they were seen.
    states: list[str]
    waits_for: str = ""

    @property
    def brief(self) -> str:
        """Tell it in a few words."""
        moved = "does not move" if self.moves_after is None else f"{self.moves_after:.1f} s"
        wrong = [f"{n} {what}" for n, what in ((self.lost, "lost"), (self.doubled, "doubled")) if n]
        return ", ".join([moved, *wrong])

    @property
    def shown(self) -> str:
        """Tell what `status` showed meanwhile."""
        text = _OF_THE_RUN.sub("…", " ".join(self.waits_for.split())).replace("|", "\\|")
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        return ", ".join(self.states) + (f": {text}" if text else "")


def _all_peers(way: Way) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        for peer in scene.peers:
            peer.set(way)

    return act


def _kill_engine(scene: Scene) -> None:
    assert scene.worker.kill_engine()


def _lose_servers(scene: Scene) -> None:
    scene.database.server.crash()
    scene.gates["http"].set("refuses")
    # It leads the topics; the other one has all that was confirmed.
    scene.kafka.nodes[1].crash()
    scene.remote.lose_primary()


def _bring_back(scene: Scene) -> None:
    assert scene.kafka.nodes[1].start(), scene.kafka.nodes[1].logged


def _move_postgres(scene: Scene) -> None:
    scene.database.server.start()
    scene.gates["postgres"].target = scene.database.server.port


def _fail_over(scene: Scene) -> None:
    _move_postgres(scene)
    scene.remote.fail_over()
    scene.gates["http"].target = scene.standby
    scene.gates["http"].set("open")


def _lose_seconds(scene: Scene) -> None:
    """Have both forget what they confirmed in their last seconds."""
    server = scene.database
    for setting in ("synchronous_commit = off", "wal_writer_delay = '1s'"):
        server.do(f"ALTER SYSTEM SET {setting}")
    server.do("SELECT pg_reload_conf()")
    # Sessions take it up with their next statement.
    time.sleep(3)
    with scene.kafka.about_to_crash():
        time.sleep(1)
    server.server.crash()


def _come_back(scene: Scene) -> None:
    _move_postgres(scene)
    scene.kafka.start()
    scene.database.do("ALTER SYSTEM RESET ALL")
    scene.database.do("SELECT pg_reload_conf()")


def _come_back_and_set_position(scene: Scene) -> None:
    """Do what a source asks people for whose log was cut: it has read what is lost."""
    _come_back(scene)
    source, told = "/connectors/kafka-source", ""
    while (found := _POSITION.search(told)) is None:
        status = scene.ask("GET", f"{source}/status") or {}
        told = " ".join(str(task.get("trace")) for task in status.get("tasks", ()))
        time.sleep(0.1)
    scene.ask("PUT", f"{source}/stop")
    where = {"kafka_topic": "origin", "kafka_partition": 0}
    offsets = [{"partition": where, "offset": {"kafka_offset": int(found[1])}}]
    while scene.ask("PATCH", f"{source}/offsets", {"offsets": offsets}) is None:
        time.sleep(0.1)
    scene.ask("PUT", f"{source}/resume")


def _away(
    name: str, way: Way, seconds: float, done: str, *, told: bool = False, brief: bool = False
) -> Fault:
    ends = _all_peers("open")
    return Fault(name, done, _all_peers(way), ends, seconds=seconds, told=told, brief=brief)


#: In the order of the page.
FAULTS = (
    Fault("nothing", "Nothing fails.", _nothing, _nothing),
    _away(
        "peer restarts",
        "refuses",
        1,
        "All connections to the peers are cut and then refused for a second; the broker of the other cluster is killed and restarted.",
    ),
    _away(
        "peer is away 1 s", "silent", 1, "Connections stay open, and nothing passes for a second."
    ),
    _away(
        "peer is away 30 s",
        "silent",
        30,
        "Connections stay open, and nothing passes for 30 s.",
        brief=True,
    ),
    _away(
        "peer is away 5 min", "silent", 300, "Connections stay open, and nothing passes for 5 min."
    ),
    _away(
        "peer refuses",
        "refuses",
        18,
        "Connections are cut and then refused for 18 s.",
        told=True,
        brief=True,
    ),
    _away(
        "peer is slow",
        "slow",
        30,
        "For 30 s at most 16 KiB pass at a time, each after a pause of 0.2 s; the broker of the other cluster runs for only a twentieth of the time.",
    ),
    Fault(
        "peer loses its last second",
        'PostgreSQL is set to confirm before it writes, and is killed; Kafka is killed, and its logs are cut to where they were a second before. Both are restarted. What they lost is not in "rows in" of a source. `kafka-source` fails, also after a restart, and names the offset from which the log was lost; the test stops it, sets that offset, and resumes it.',
        _lose_seconds,
        _come_back_and_set_position,
        connectors=_POSTGRES + _KAFKA,
        keeps=False,
        loses=True,
    ),
    Fault(
        "peer fails over",
        "PostgreSQL is killed, and a server with its data takes over its address; another web service with the same data takes over that of the first; of two Kafka nodes the one that leads all topics is killed, and the other takes over by itself; the broker of the other cluster is killed, and its follower is promoted.",
        _lose_servers,
        _fail_over,
        then=_bring_back,
        seconds=1,
        connectors=(*_POSTGRES, *_KAFKA, "rocketmq-sink", "rocketmq-source", "http-sink"),
    ),
    Fault(
        "worker killed",
        "The worker's process gets SIGKILL, and a new one is started on the same folder at once.",
        lambda scene: scene.worker.kill(),
        lambda scene: scene.worker.start(),
        keeps=False,
        brief=True,
    ),
    Fault(
        "host killed",
        "The processes of all nine tasks get SIGKILL; `restart.max.attempts` is -1.",
        lambda scene: scene.kill_hosts(),
        _nothing,
        keeps=False,
    ),
    Fault(
        "engine killed",
        "The engine and its Java and Python processes get SIGKILL.",
        _kill_engine,
        _nothing,
    ),
    Fault(
        "broker killed",
        "The broker of the worker's own cluster gets SIGKILL, and is restarted after a second.",
        lambda scene: scene.broker.kill(),
        lambda scene: scene.broker.restart(),
        seconds=1,
    ),
)


def read() -> dict[str, dict[str, Cell]]:
    """Read what was measured, by fault and connector."""
    return msgspec.json.decode(RECORDED.read_bytes(), type=dict[str, dict[str, Cell]])


def record(fault: Fault, cells: Mapping[str, Cell]) -> None:
    """Write down what a fault cost, in place of what it cost before."""
    found = read() | {fault.name: dict(cells)}
    known = {one.name: found[one.name] for one in FAULTS if one.name in found}
    RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")


def page(measured: Mapping[str, Mapping[str, Cell]]) -> str:
    """Write the page of all faults."""
    heads = ["connector", *(fault.title for fault in FAULTS)]
    rows = [
        [f"`{name}`", *(_brief(fault, name, measured.get(fault.name)) for fault in FAULTS)]
        for name in CONNECTORS
    ]
    parts = [_HEAD, _table(heads, rows)]
    for fault in FAULTS:
        sentences = fault.done.replace(". ", ".\n")
        parts.append(f"## {fault.name[0].upper()}{fault.name[1:]}\n\n{sentences}\n")
        cells = measured.get(fault.name)
        parts.append("Not run yet.\n" if cells is None else _details(cells))
    return "\n".join(parts)


def _brief(fault: Fault, connector: str, cells: Mapping[str, Cell] | None) -> str:
    if connector not in fault.connectors:
        return "not tried"
    return "not run yet" if cells is None else cells[connector].brief


def _details(cells: Mapping[str, Cell]) -> str:
    heads = ["connector", "rows in", "rows out", "doubled", "lost", "moves again after"]
    rows = [
        [
            f"`{name}`",
            *(f"{n:,}" for n in (cell.rows_in, cell.rows_out, cell.doubled, cell.lost)),
            "not" if cell.moves_after is None else f"{cell.moves_after:.1f} s",
            cell.shown,
        ]
        for name, cell in ((name, cells[name]) for name in CONNECTORS if name in cells)
    ]
    return _table([*heads, "state shown meanwhile"], rows)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page(read()))
