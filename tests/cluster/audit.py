"""Feeds a job that counts, gathers by time, joins and rejects, and holds all that comes out.

It runs on a machine that is not struck, as a program: ``python -m tests.cluster.audit NAMESRV
NAME``.  It feeds until a file ``NAME-enough`` lies in its folder, and waits for the rest.

What must come out is reckoned from what lies in the topics that the job reads, by the few lines of
:func:`expected`, and not from what was sent: a send that was not answered is made again, and may
have arrived twice.  What was answered must be there.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.client import Admin, Client, Message, Producer, PullConsumer
from headrace.keys import key_from_properties
from headrace.protocol.codes import ResponseCode
from tests.cluster.machines import HOME
from tests.faults.harness import PATIENT
from tests.faults.proof_followers import Follower

__all__ = ["ENOUGH", "PROGRAM", "SLOW", "STEPS"]

#: Files, behind the name of the job: one with a time for each look at which there were new
#: results, s since 1970; and one that ends the feeding.
STEPS, ENOUGH = "-steps", "-enough"
#: How long a task takes on a machine whose folder has a file `slow`, s.
SLOW = 400
#: The job; its name stands for ``JOB``.  A machine's folder says by files what befalls tasks there,
#: and when one ran last.
PROGRAM = f"""\
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from headrace import Accumulator, StreamBuilder, serdes, tumbling


class Follow(Accumulator):
    def __init__(self):
        self.count, self.last = 0, 0

    def add(self, line):
        self.count, self.last = self.count + 1, line["number"]

    def result(self):
        return [self.count, self.last]


def struck(count):
    here = Path("{HOME}")
    (here / "ran").touch()
    if (here / "slow").exists():
        (here / "began").touch()
        time.sleep({SLOW})
    if (here / "hungry").exists():
        bytearray(6 << 30)
    if (here / "doomed").exists():
        (here / "doomed").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return count


def source(name):
    return builder.source(
        f"JOB-{{name}}",
        serdes.json,
        timestamp=lambda value: value["time"],
        allowed_lateness=timedelta(0),
        idle_timeout=None,
        name=name,
    )


builder = StreamBuilder("JOB")
lines = source("lines").map_values(
    lambda line: {{**line, "number": int(line["number"])}}, name="read", on_error="topic:JOB-dead"
)
by_key = lines.key_by(lambda line: line["key"], name="by-key")
numbers = by_key.aggregate(Follow, name="numbers", emit="each")
numbers.to_stream().map_values(struck).sink("JOB-numbers", serdes.json)
windows = by_key.window(tumbling(timedelta(seconds=5))).count(name="windows")
windows.to_stream().sink("JOB-windows", serdes.json)
pairs = (
    lines.join(source("marks"))
    .left_key(lambda line: line["key"])
    .right_key(lambda mark: mark["key"])
    .within(timedelta(seconds=2))
    .apply(lambda line, mark: [line["key"], line["number"], mark["number"]])
)
pairs.sink("JOB-pairs", serdes.json)
topology = builder.build()
"""
_WINDOW, _WITHIN = 5000, 2000
_SOURCES, _SINKS = ("lines", "marks"), ("numbers", "windows", "pairs", "dead")
_QUEUES = 2
#: Times of the first round, of the next one after it, and of what closes all windows, ms.
_FIRST, _ROUND, _LAST = 1_000_000_000_000, 100, 1_700_000_000_000
_KEYS, _LINES, _BAD = 40, 3, 7
_LOOK = 0.25
_PATIENCE = 240.0


@dataclass
class Results:
    """What has come out of the job, or must."""

    #: Count and number, of each key in order.
    numbers: dict[str, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    #: Counts by key and begin of the window.
    windows: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: Key, number and mark.
    pairs: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    dead: Counter[bytes] = field(default_factory=Counter)

    def __len__(self) -> int:
        parts = (self.numbers, self.windows, self.pairs, self.dead)
        return sum(
            sum(len(value) if isinstance(value, list) else value for value in part.values())
            for part in parts
        )


def expected(lines: Iterable[bytes], marks: Iterable[bytes]) -> Results:
    """Reckon what a job must make of its messages, those of a key in order."""
    wanted, near = Results(), defaultdict(list)
    for mark in map(json.loads, marks):
        near[mark["key"]].append(mark)
    for body in lines:
        line = json.loads(body)
        key, number, when = line["key"], line["number"], line["time"]
        if not isinstance(number, int):
            wanted.dead[body] += 1
            continue
        wanted.numbers[key].append([len(wanted.numbers[key]) + 1, number])
        if when < _LAST:
            wanted.windows[key, when - when % _WINDOW] += 1
        for mark in near[key]:
            if abs(mark["time"] - when) <= _WITHIN:
                wanted.pairs[key, number, mark["number"]] += 1
    return wanted


class Audit:
    """Feeds, and follows what comes out."""

    def __init__(self, client: Client, name: str) -> None:
        self._producer, self._consumer = Producer(client), PullConsumer(client)
        self._queues = {kind: sorted(client.queues(f"{name}-{kind}")) for kind in _SOURCES}
        self._sinks = {kind: Follower(client, f"{name}-{kind}") for kind in _SINKS}
        self._answered: Counter[bytes] = Counter()
        self._numbers: Counter[str] = Counter()
        self._rounds = itertools.count()
        self._found = Results()
        self._wanted: Results | None = None

    def feed(self) -> None:
        """Send some lines, one of which may be bad, and a mark."""
        number = next(self._rounds)
        when = _FIRST + number * _ROUND
        keys = [(number * _LINES + more) % _KEYS for more in range(_LINES)]
        for key in keys:
            self._numbers[f"w{key}"] += 1
            self._send("lines", key, f"w{key}", self._numbers[f"w{key}"], when)
        self._send("marks", keys[0], f"w{keys[0]}", number, when)
        if number % _BAD == 0:
            self._send("lines", keys[0], f"w{keys[0]}", f"bad {number}", when)

    def end(self) -> None:
        """Close all windows, and reckon what must come out."""
        for kind, queues in self._queues.items():
            for number in range(len(queues)):
                self._send(kind, number, f"last {kind} {number}", 1, _LAST)
        there = {kind: list(self._bodies(kind)) for kind in _SOURCES}
        lost = self._answered - Counter(itertools.chain(*there.values()))
        assert not lost, f"what was answered is not there: {lost}"
        self._wanted = expected(**there)

    def look(self) -> bool:
        """Take new results, each of which must go on from the one before; tell if there were any."""
        before = len(self._found)
        for kind, follower in self._sinks.items():
            for message in follower.new():
                self._take(kind, message.body, message.properties)
        return len(self._found) > before

    def is_complete(self) -> bool:
        """Tell whether all is there that must be."""
        return self._found == self._wanted

    def missing(self) -> str:
        """Say what is there and must not be, and the other way round."""
        assert self._wanted is not None
        told = []
        for kind in _SINKS:
            found, wanted = getattr(self._found, kind), getattr(self._wanted, kind)
            wrong = {key for key in {*found, *wanted} if found.get(key) != wanted.get(key)}
            told += [
                f"{kind} {key}: {found.get(key)} instead of {wanted.get(key)}" for key in wrong
            ]
        return f"{len(told)} differ: " + "; ".join(sorted(told)[:5])

    def describe(self) -> str:
        """Say how much it was."""
        parts = ", ".join(f"{len(getattr(self._found, kind))} {kind}" for kind in _SINKS[1:])
        total = sum(map(len, self._found.numbers.values()))
        return f"exact: {total} numbers, {parts}"

    def _take(self, kind: str, body: bytes, properties: Mapping[str, str]) -> None:
        found = self._found
        if kind == "dead":
            found.dead[body] += 1
            return
        value, key = json.loads(body), str(key_from_properties(properties))
        if kind == "numbers":
            found.numbers[key].append(value)
            assert value[0] == len(found.numbers[key]), f"{key} came to {value} out of its order"
        elif kind == "windows":
            place = key, int(properties["window_start_time"])
            assert place not in found.windows, f"the window {place} has fired twice"
            found.windows[place] = value
        else:
            found.pairs[tuple(value)] += 1

    def _send(self, kind: str, place: int, key: str, number: int | str, when: int) -> None:
        queues = self._queues[kind]
        queue = queues[place % len(queues)]
        body = json.dumps({"key": key, "number": number, "time": when}).encode()
        sent = self._producer.send(Message(topic=queue.topic, body=body), queue)
        if sent.status is ResponseCode.SUCCESS:
            self._answered[body] += 1

    def _bodies(self, kind: str) -> Iterator[bytes]:
        for queue in self._queues[kind]:
            for block in self._consumer.blocks(queue, 0, self._consumer.end_offset(queue)):
                yield from (message.body for message in block.messages())


def main(namesrv: str, name: str) -> None:
    """Feed, watch and hold."""
    with ExitStack() as opened:
        client = opened.enter_context(Client(namesrv, PATIENT))
        for kind in (*_SOURCES, *_SINKS):
            Admin(client).create_topic(f"{name}-{kind}", queues=_QUEUES)
        audit, ends = Audit(client, name), math.inf
        steps = opened.enter_context(Path(f"{name}{STEPS}").open("w"))
        while not audit.is_complete():
            if audit.look():
                print(f"{time.time():.2f}", file=steps, flush=True)
            assert time.monotonic() < ends, audit.missing()
            if ends == math.inf:
                audit.feed()
                if Path(f"{name}{ENOUGH}").exists():
                    audit.end()
                    ends = time.monotonic() + _PATIENCE
            time.sleep(_LOOK)
        print(audit.describe(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
