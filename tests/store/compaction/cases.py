"""Runs cases of compaction on one queue's log."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.broker.handlers.send import _require_keys
from headrace.errors import MessageRejectedError
from headrace.store.compaction import QueueLog
from headrace.store.compaction.manifest import ReadStatus
from tests.store.compaction.expressions import evaluate
from tests.store.compaction.killing import Killed, KillingOps
from tests.store.compaction.samples import (
    Record,
    TestClock,
    decode,
    open_log,
    records_of,
    settings,
    survivors,
)

Step = dict[str, Any]

_STATUS = {
    "FOUND": ReadStatus.FOUND,
    "OFFSET_OVERFLOW_ONE": ReadStatus.AT_END,
    "OFFSET_OVERFLOW_BADLY": ReadStatus.BEYOND,
    "NO_MESSAGE_IN_QUEUE": ReadStatus.AT_END,
    "OFFSET_FOUND_NULL": ReadStatus.AT_END,
}

_CHECKPOINTS = {
    *("lost", "missing", "older", "ahead", "half", "half-written", "half_written"),
    *("other", "other_topic", "damaged", "offset", "position", "mapped_until"),
}

#: Steps that only look.
_LOOKS = {"survivors", "survivors_count", "latest", "read", "bounds"}
#: Keys of a step that say more about its first one.
_DETAILS = {"records", "next", "status", "why", "note", "comment", "now_ms", "round"}
#: Keys of a case that are no steps and need no action.
_TOLD = {"id", "title", "source", "why", "steps", "rocketmq_5_3_3", "note", "notes", "rules"}


def run_case(case: dict[str, Any]) -> None:
    """Run a case, once for each point at which it is to be killed.

    Raises
    ------
    AssertionError
        Names the step and what was wrong with it.
    """
    if not any("compact_killed" in step for step in case["steps"]):
        _run(case, None)
        return
    kill_at = 1
    while _run(case, kill_at):
        kill_at += 1


def _run(case: dict[str, Any], kill_at: int | None) -> bool:
    """Run a case; tell whether the kill came before the compaction was over."""
    with tempfile.TemporaryDirectory() as folder:
        run = CaseRun(case, Path(folder) / "queue", kill_at)
        for number, step in enumerate(case["steps"], 1):
            try:
                run.step(step)
            except AssertionError as error:
                killed = f", killed at operation {kill_at} ({run.killed})" if kill_at else ""
                message = f"step {number} {json.dumps(step)[:80]}{killed}: {error}"
                raise AssertionError(message) from error
        run.log.close()
        return run.killed is not None


class CaseRun:
    """One run of a case: the log, all records ever appended, the clock."""

    def __init__(self, case: dict[str, Any], folder: Path, kill_at: int | None) -> None:
        unknown = set(case) - _TOLD - {"map_capacity", "tombstone", "digest", "settings"}
        unknown = {name for name in unknown if not _is_told(name, case[name])}
        assert not unknown, f"this runner does not know {sorted(unknown)} of a case"
        self.folder = folder
        self.capacity: int | None = case.get("map_capacity")
        self.clock = TestClock()
        self.ops = KillingOps()
        self.kill_at = kill_at
        #: The operation at which the compaction was killed.
        self.killed: str | None = None
        self.config = settings(
            tombstone_retention=_retention(case.get("tombstone")),
            digest=case.get("digest", "blake2b"),
            **case.get("settings", {}),
        )
        #: The commit log: every record of the queue that was ever sent.
        self.sent: list[Record] = []
        self.log = self._open()

    def step(self, step: Step) -> None:
        names = [name for name in step if hasattr(self, f"do_{name}")]
        unknown = set(step) - set(names) - _DETAILS
        unknown = {name for name in unknown if not (names and _is_told(name, step[name]))}
        assert not unknown, f"this runner does not know the step {min(unknown)!r}"
        assert names, f"this step has nothing that this runner knows: {sorted(step)}"
        if "now_ms" in step:
            self._set_clock(step["now_ms"])
        if "accept" in names and (checks := _LOOKS & set(names)):
            # What stands beside the alternatives is one of them.
            first = {name: step[name] for name in (*checks, *_DETAILS & set(step))}
            step = step | {"accept": [first, *step["accept"]]}
            names = [name for name in names if name not in checks]
        for name in names:
            getattr(self, f"do_{name}")(step[name], step)

    # Writing

    def do_append(self, pairs: list[list[str | None]], step: Step) -> None:
        base = self.log.next_offset
        self._send([(base + i, key, value) for i, (key, value) in enumerate(pairs)])

    def do_append_at(self, given: Any, step: Step) -> None:
        rows = given["records"] if isinstance(given, dict) else given
        self._send([(int(offset), key, value) for offset, key, value in rows])

    def do_append_refused(self, pairs: list[list[str | None]], step: Step) -> None:
        """Ask what the broker asks of every send to a compacted topic."""
        for key, value in pairs:
            try:
                _require_keys("table", records_of([(self.log.next_offset, key, value)]))
            except MessageRejectedError:
                continue
            raise AssertionError(f"key {key!r} is not blank, so it is not refused")

    def do_gen(self, gen: dict[str, Any], step: Step) -> None:
        base = self.log.next_offset
        first = gen.get("from", 0)
        self._generate(gen, [_generated(gen, base + i, first + i) for i in range(gen["count"])])

    def do_gen_at(self, gen: dict[str, Any], step: Step) -> None:
        first, stride = gen["from"], gen.get("step", gen.get("stride", 1))
        self._generate(gen, [_generated(gen, first + i * stride, i) for i in range(gen["count"])])

    def _generate(self, gen: dict[str, Any], records: list[Record]) -> None:
        every = gen.get("roll_every", len(records) + 1)
        for first in range(0, len(records), every):
            some = records[first : first + every]
            self._send(some)
            if len(some) == every:
                self.log.roll()

    def do_roll(self, wanted: bool, step: Step) -> None:
        self.log.roll()

    def do_truncate(self, offset: int, step: Step) -> None:
        self.log.truncate(offset)
        self.sent = [record for record in self.sent if record[0] < offset]

    def do_replay(self, given: Any, step: Step) -> None:
        """Hand records over again, as a reput does after a crash: what is there adds nothing."""
        if isinstance(given, list):
            again = [(int(offset), key, value) for offset, key, value in given]
        else:
            first = given.get("from", 0) if isinstance(given, dict) else 0
            last = given.get("to") if isinstance(given, dict) else None
            again = [
                one for one in self.sent if one[0] >= first and (last is None or one[0] <= last)
            ]
        known = {record[0] for record in self.sent}
        self.sent += [record for record in again if record[0] not in known]
        missing = [record for record in again if record[0] >= self.log.next_offset]
        if missing:
            self.log.append(records_of(missing))

    # Compacting and restarting

    def do_compact(self, options: Any, step: Step) -> None:
        options = dict(options) if isinstance(options, dict) else {}
        if "now_ms" in options:
            self._set_clock(options.pop("now_ms"))
        rounds = options.pop("rounds", None)
        capacity = options.pop("map_capacity", self.capacity)
        for name in ("force", "full"):
            options.pop(name, None)
        assert not options, f"this runner does not know {sorted(options)} of a compaction"
        before = survivors(self.log, 1000)
        report = self.log.compact(force=True, max_rounds=rounds, map_capacity=capacity)
        assert rounds is None or report.rounds <= rounds
        after = survivors(self.log, 1000)
        assert set(after) <= set(before), "a compaction made records up"
        self._check_latest(before, after)

    def do_compact_killed(self, options: dict[str, Any], step: Step) -> None:
        """Kill before one file operation; all kill points that a case can name are among them."""
        if self.kill_at is None:
            return
        self.ops.arm(self.kill_at)
        try:
            self.log.compact(force=True, map_capacity=self.capacity)
        except Killed as killed:
            self.killed = str(killed)
        finally:
            self.ops.arm(None)
        self.log = self._open()

    def do_restart(self, how: Any, step: Step) -> None:
        self.log.close()
        if isinstance(how, dict):
            for name, value in how.items():
                assert name == "checkpoint", f"this runner does not know {name!r} of a restart"
                self._tamper(value)
        self.log = self._open()

    def do_checkpoint(self, what: Any, step: Step) -> None:
        self.log.close()
        self._tamper(what)
        self.log = self._open()

    def do_set_checkpoint(self, what: Any, step: Step) -> None:
        self.do_checkpoint(what, step)

    def do_replica(self, options: Any, step: Step) -> None:
        """Build the queue on a machine that lost it: by messages, up to its own commit log."""
        options = dict(options) if isinstance(options, dict) else {}
        own_from = 0
        for name in ("commitlog_min", "commit_log_min", "local_from", "own_from", "from", "min"):
            own_from = options.pop(name, own_from)
        wanted = options.pop("survivors", None)
        assert not options, f"this runner does not know {sorted(options)} of a replica"
        master = self.log
        pulled = [record for record in survivors(master, 1000) if record[0] < own_from]
        own = [record for record in self.sent if record[0] >= own_from]
        self.folder = self.folder.with_name(self.folder.name + "-replica")
        self.log = self._open()
        self.log.append(records_of(pulled))
        self.log.append(records_of(own))
        self.log.roll()
        self.log.compact(force=True, map_capacity=self.capacity)
        assert self.log.next_offset == master.next_offset
        master.close()
        if wanted is not None:
            self.do_survivors(wanted, step)

    # Looking

    def do_survivors(self, wanted: list[list[Any]], step: Step) -> None:
        for max_count in (1, 3, 1000):
            found = survivors(self.log, max_count)
            assert found == _records(wanted), f"survivors are {found}"
        assert self.log.verify() == []

    def do_survivors_count(self, wanted: int, step: Step) -> None:
        found = survivors(self.log, 1000)
        assert len(found) == wanted, f"there are {len(found)} survivors: {found}"

    def do_latest(self, wanted: dict[str, str | None], step: Step) -> None:
        found = {key: value for _, key, value in survivors(self.log, 1000) if value is not None}
        expected = {key: value for key, value in wanted.items() if value is not None}
        assert found == expected, f"latest values are {found}"

    def do_invariant(self, what: Any, step: Step) -> None:
        self._check_latest(self.sent, survivors(self.log, 1000))

    def do_read(self, asked: dict[str, int], step: Step) -> None:
        wanted = _records(step.get("records", []))
        read = self.log.read(asked["offset"], asked.get("max", 1), 1 << 30)
        found = decode(read.slices)
        if wanted:
            assert found, "nothing was read"
        assert found == wanted[: len(found)], f"records are {found}"
        if "next" in step:
            following = step["next"] if len(found) == len(wanted) else found[-1][0] + 1
            assert read.next_offset == following, f"next is {read.next_offset}"
        if "status" in step:
            expected = _STATUS.get(step["status"])
            assert expected is not None, f"this runner does not know status {step['status']!r}"
            assert read.status is expected, f"status is {read.status.name}"

    def do_bounds(self, wanted: dict[str, int | None], step: Step) -> None:
        log = self.log
        assert log.next_offset == wanted["max"], f"max is {log.next_offset}"
        first = log.min_offset if survivors(log, 1000) else None
        assert first == wanted["min"], f"min is {first}"

    def do_accept(self, outcomes: list[Any], step: Step) -> None:
        failures = []
        for outcome in outcomes:
            try:
                for one in _as_steps(outcome):
                    self.step(one)
            except AssertionError as error:
                failures.append(str(error))
            else:
                return
        raise AssertionError("no outcome is the case: " + "; ".join(failures))

    def _open(self) -> QueueLog:
        return open_log(self.folder, self.config, ops=self.ops, clock=self.clock)

    def _send(self, records: list[Record]) -> None:
        assert not any(_is_blank(key) for _, key, _ in records), "a blank key would be refused"
        self.sent += records
        self.log.append(records_of(records))

    def _set_clock(self, now_ms: int) -> None:
        self.clock.age = now_ms

    def _tamper(self, what: Any) -> None:
        """Lose or change a checkpoint: ours are notes, the manifest has what counts."""
        word = next(iter(what), None) if isinstance(what, dict) else what
        known = word is None or isinstance(word, int) or word in _CHECKPOINTS
        assert known, f"this runner does not know the checkpoint {what!r}"
        for path in self.folder.glob("*.synced"):
            path.unlink()
        # RocketMQ's file: here it is a stranger, whatever it says.
        if self.folder.exists():
            (self.folder / "position-checkpoint").write_text(json.dumps({"offset": what}))

    def _check_latest(self, before: list[Record], after: list[Record]) -> None:
        """The latest record of each key stays, unless it is a delete."""
        latest = {key: record for record in before for key in (record[1],)}
        lost = {record for record in latest.values() if record[2] is not None} - set(after)
        assert not lost or self.config.digest == "md5", f"the latest records {lost} are gone"
        assert all(one[0] < two[0] for one, two in pairwise(after))


def _retention(rule: Any) -> timedelta:
    if rule == "immediate":
        return timedelta(0)
    if rule is None:
        return timedelta(hours=24)
    known = isinstance(rule, dict) and set(rule) == {"retain_ms"}
    assert known, f"this runner does not know the tombstone rule {rule!r}"
    return timedelta(milliseconds=rule["retain_ms"])


def _is_told(name: str, value: Any) -> bool:
    """Tell whether a key only tells the reader something."""
    return isinstance(value, str) or name.startswith(("rocketmq", "kafka"))


def _is_blank(key: str | None) -> bool:
    return key is None or not key.strip()


def _records(wanted: list[list[Any]]) -> list[Record]:
    return [(int(offset), key, value) for offset, key, value in wanted]


def _as_steps(outcome: Any) -> Iterator[Step]:
    if isinstance(outcome, int):
        yield {"survivors_count": outcome}
    elif isinstance(outcome, list) and outcome and isinstance(outcome[0], dict):
        yield from outcome
    elif isinstance(outcome, list):
        yield {"survivors": outcome}
    else:
        yield outcome


def _generated(gen: dict[str, Any], offset: int, i: int) -> Record:
    key, value = gen["key"], gen["value"]
    return (
        offset,
        evaluate(key, i, offset),
        None if value is None else evaluate(value, i, offset),
    )
