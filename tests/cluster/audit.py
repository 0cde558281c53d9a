"""Feeds a job that counts words, watches for results, and holds each one against what was sent.

It runs on the broker's machine, as a program: ``python -m tests.cluster.audit NAMESRV FOLDER``.
It feeds until a file ``enough`` lies in the folder, and waits for the rest.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from headrace.client import Client, Message, Producer, PullConsumer

__all__ = ["SINK", "SOURCE", "STEPS"]

SOURCE, SINK = "lines", "counts"
#: File of the folder with a time for each look at which there were new results, s since 1970.
STEPS = "steps"
_KEYS = 40
_LOOK = 0.1
_PATIENCE = 240.0


class Audit:
    """Counts what is sent, and follows what comes out."""

    def __init__(self, client: Client) -> None:
        self._producer, self._consumer = Producer(client), PullConsumer(client)
        self._offsets = dict.fromkeys(client.queues(SINK), 0)
        self._sent: Counter[str] = Counter()
        self._found: dict[str, int] = {}
        self._round = 0

    def feed(self) -> None:
        """Send a line of three words."""
        words = [f"w{(self._round * 3 + number) % _KEYS}" for number in range(3)]
        self._round += 1
        self._producer.send(Message(topic=SOURCE, body=" ".join(words).encode()))
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


def main(namesrv: str, folder: Path) -> None:
    """Feed, watch and hold."""
    with Client(namesrv) as client, (folder / STEPS).open("w") as steps:
        audit, ends = Audit(client), None
        while True:
            if audit.look():
                print(f"{time.time():.2f}", file=steps, flush=True)
            if ends is None:
                audit.feed()
                if (folder / "enough").exists():
                    ends = time.monotonic() + _PATIENCE
            elif audit.is_complete():
                print(f"exact: {sum(audit._sent.values())} words", flush=True)
                return
            else:
                assert time.monotonic() < ends, "not all that was sent is counted"
            time.sleep(_LOOK)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
