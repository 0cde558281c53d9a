"""Feeds a job that counts words, watches for results, and holds each one against what was sent.

It runs on the broker's machine, as a program: ``python -m tests.cluster.audit NAMESRV NAME``.
It feeds until a file ``NAME-enough`` lies in its folder, and waits for the rest.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

from headrace.client import Admin, Client, Message, Producer, PullConsumer

__all__ = ["ENOUGH", "SINK", "SOURCE", "STEPS"]

#: Names of the topics, behind that of the job.
SOURCE, SINK = "-lines", "-counts"
#: Files: one with a time for each look at which there were new results, s since 1970; and one that
#: ends the feeding.
STEPS, ENOUGH = "-steps", "-enough"
_KEYS = 40
_LOOK = 0.1
_PATIENCE = 240.0


class Audit:
    """Counts what is sent, and follows what comes out."""

    def __init__(self, client: Client, name: str) -> None:
        self._source = f"{name}{SOURCE}"
        self._producer, self._consumer = Producer(client), PullConsumer(client)
        self._offsets = dict.fromkeys(client.queues(f"{name}{SINK}"), 0)
        self._sent: Counter[str] = Counter()
        self._found: dict[str, int] = {}
        self._round = 0

    def feed(self) -> None:
        """Send a line of three words."""
        words = [f"w{(self._round * 3 + number) % _KEYS}" for number in range(3)]
        self._round += 1
        self._producer.send(Message(topic=self._source, body=" ".join(words).encode()))
        self._sent.update(words)

    def look(self) -> bool:
        """Take new results, each of which must go on from the one before; tell if there were any."""
        news = False
        for queue, offset in self._offsets.items():
            end = self._consumer.end_offset(queue)
            for block in self._consumer.blocks(queue, offset, end):
                for message in block.messages():
                    key, count = message.keys or "", json.loads(message.body)
                    last = self._found.get(key, 0)
                    assert count > last, f"{key} is {count} after {last}"
                    self._found[key], news = count, True
            self._offsets[queue] = end
        return news

    def is_complete(self) -> bool:
        """Tell whether everything that was sent is counted, and nothing twice."""
        over = {key: count for key, count in self._found.items() if count > self._sent[key]}
        assert not over, f"counted more often than sent: {over}"
        return self._found == dict(self._sent)

    def describe(self) -> str:
        """Say how much it was."""
        return f"exact: {sum(self._sent.values())} words"


def main(namesrv: str, name: str) -> None:
    """Feed, watch and hold."""
    with Client(namesrv) as client, Path(f"{name}{STEPS}").open("w") as steps:
        for topic in (SOURCE, SINK):
            Admin(client).create_topic(f"{name}{topic}")
        audit, ends = Audit(client, name), math.inf
        while not audit.is_complete() or ends == math.inf:
            if audit.look():
                print(f"{time.time():.2f}", file=steps, flush=True)
            if ends < math.inf:
                assert time.monotonic() < ends, "not all that was sent is counted"
            else:
                audit.feed()
                if Path(f"{name}{ENOUGH}").exists():
                    ends = time.monotonic() + _PATIENCE
            time.sleep(_LOOK)
        print(audit.describe(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
