"""Where a job stands, told by its commit topic: by operator, in any process."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any

from typer.testing import CliRunner

from headrace import serdes, tumbling
from headrace.cli.app import app
from headrace.errors import StateError
from headrace.runtime.jobs.reset import exported, import_state, rescale
from headrace.runtime.standing import OperatorStatistics, lag_of, operator_statistics
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

SECOND = timedelta(seconds=1)
BASE = 1_700_000_000_000


def job_of(rig: Rig, orders: str, clicks: str) -> Topology:
    builder = StreamBuilder(f"standing-{orders}")
    sold = (
        builder.source(
            orders,
            serdes.json,
            timestamp=lambda value: value["t"],
            allowed_lateness=timedelta(0),
            name="orders",
        )
        .map_values(lambda value: {**value, "n": 12 // value["n"]}, name="share", on_error="skip")
        .key_by(lambda value: value["k"], name="by-key")
    )
    sold.window(tumbling(10 * SECOND)).count(name="windows").to_stream().sink(
        rig.topic(), serdes.json
    )
    clicked = builder.source(clicks, serdes.json, name="clicks").key_by(lambda value: value["k"])
    clicked.count(name="clicked").to_stream().sink(rig.topic(), serdes.json)
    return builder.build()


def order(key: str | None, number: int, second: int) -> str:
    return json.dumps({"k": key, "n": number, "t": BASE + second * 1000})


def run(rig: Rig, job: Topology, folder: str = "one") -> None:
    with LocalDriver(rig.namesrv, rig.folder / folder, 200, job=job) as driver:
        driver.catch_up()


def operators(rig: Rig, job: Topology) -> dict[str, OperatorStatistics]:
    home = StateHome.of(job.name, rig.client)
    record = home.record()
    return operator_statistics(record, lag_of(home, record))


def test_each_operator_says_what_it_did_and_how_far_it_is_behind(rig: Rig) -> None:
    orders, clicks = rig.topic(queues=1), rig.topic(queues=1)
    job = job_of(rig, orders, clicks)
    seconds = [("a", 1, 0), ("b", 2, 1), ("a", 0, 2), (None, 3, 3), ("b", 4, 25), ("a", 5, 2)]
    rig.send(orders, [order(*values) for values in seconds])
    rig.send(clicks, [json.dumps({"k": "c"})])
    run(rig, job)
    rig.send(orders, [order("a", 1, 26)] * 3)
    shown = operators(rig, job)
    assert list(shown)[:3] == ["orders", "share", "by-key"]
    source, share, windows = (shown[name] for name in ("orders", "share", "windows"))
    assert (source.records_in, source.records_out) == (6, 6)
    assert (share.records_in, share.records_out, share.dropped) == (6, 5, 1)
    # Without a key: dropped; behind the watermark: late.
    assert (windows.dropped, windows.late, windows.records_out) == (1, 1, 2)
    assert source.watermark == datetime.fromtimestamp(BASE / 1000, UTC) + 25 * SECOND
    assert windows.watermark == datetime.fromtimestamp(BASE / 1000, UTC) + 20 * SECOND
    assert (windows.lag, source.lag, shown["clicked"].lag, shown["clicks"].lag) == (3, 3, 0, 0)
    assert windows.behind is not None
    assert timedelta(0) < windows.behind < timedelta(minutes=5)
    assert shown["clicked"].behind == timedelta(0)
    assert (windows.state_keys, shown["clicked"].state_keys, share.state_keys) == (1, 1, 0)


def sizes(rig: Rig, job: Topology, store: str) -> tuple[int, int]:
    """Entries of a store, and bytes of their messages' bodies, by looking at all of them."""
    with CommittedState(StateHome.of(job.name, rig.client), store) as view:
        entries = [json.loads(line) for line in exported(view)]
    bodies = [8 + len(b64decode(e["key"])) + len(b64decode(e["value"])) for e in entries]
    return len(bodies), sum(bodies)


def test_size_of_state_is_exact_after_changes_imports_and_rescales(rig: Rig) -> None:
    orders, clicks = rig.topic(queues=1), rig.topic(queues=1)
    job = job_of(rig, orders, clicks)

    def home() -> StateHome:
        return StateHome.of(job.name, rig.client)

    def check() -> tuple[int, int]:
        told = operators(rig, job)["clicked"]
        assert (told.state_keys, told.state_bytes) == sizes(rig, job, "clicked")
        return told.state_keys, told.state_bytes

    for count in (3, 300):
        rig.send(clicks, [json.dumps({"k": f"key-{n % 40}"}) for n in range(count)])
        run(rig, job)
        check()
    rescale(home(), 3)
    before = check()
    with CommittedState(home(), "clicked") as view:
        lines = list(exported(view))
    import_state(home(), "clicked", lines[:10])
    assert check()[0] == 10
    import_state(home(), "clicked", lines)
    assert check() == before


def test_restores_are_counted_with_their_time(rig: Rig) -> None:
    orders, clicks = rig.topic(queues=1), rig.topic(queues=1)
    job = job_of(rig, orders, clicks)
    for part in range(2):
        rig.send(clicks, [json.dumps({"k": f"key-{n % 40}"}) for n in range(100)])
        run(rig, job, f"machine-{part}")
        told = operators(rig, job)["clicked"]
        # The second machine has no copy: it reads what the first one wrote, 40 keys.
        assert told.restored == (40 if part else 0)
        assert bool(told.restore_time) == bool(part)


def test_command_shows_a_table_or_json(rig: Rig) -> None:
    orders, clicks = rig.topic(queues=1), rig.topic(queues=1)
    job = job_of(rig, orders, clicks)

    def call(*more: str, status: int = 0) -> str:
        command = ["job", "status", job.name, *more, "--namesrv", rig.namesrv]
        done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
        assert done.exit_code == status
        if status:
            assert isinstance(done.exception, SystemExit | StateError)
        return done.stdout

    call(status=1)
    rig.send(orders, [order("a", 1, 0), order("b", 1, 25)])
    run(rig, job)
    rig.send(clicks, [json.dumps({"k": "c"})])
    told: dict[str, Any] = json.loads(call("--json"))
    assert (told["job"], told["batch"], told["partitions"]) == (job.name, 1, 2)
    shown = told["operators"]
    assert set(shown) == {operator.name for operator in job.operators}
    assert shown["orders"]["watermark"] == "2023-11-14T22:13:45+00:00"
    assert (shown["clicked"]["lag"], shown["windows"]["lag"]) == (1, 0)
    assert shown["windows"]["state_bytes"] > 0
    table = call()
    head, row = (
        [cell.strip() for cell in _line(table, word).split(mark)[1:-1]]
        for word, mark in (("operator", "┃"), ("windows", "│"))
    )
    cells = dict(zip(head, row, strict=True))
    assert (cells["in"], cells["out"], cells["lag"]) == ("2", "1", "0")
    assert cells["watermark"] == "2023-11-14 22:13:40"
    assert not {"late", "dropped"} & set(head), "columns without a word are left out"


def _line(table: str, word: str) -> str:
    return next(line for line in table.splitlines() if word in line)
