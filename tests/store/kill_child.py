"""A process that writes to a store until it is killed, and says what was acknowledged.

Each line it prints is ``append N`` or ``unit N``, after the answer to that write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.store import MessageStore, StageKey, StoreSettings
from tests.store.samples import append_of, chunk_of, section_of, settings

QUEUES = 3


def store_settings(kind: str) -> StoreSettings:
    return settings(
        flush="async" if kind == "async" else "sync",
        unit_marks=kind != "unmarked",
        segment_size=20_000,
        index_file_units=64,
        large_unit=1 if kind == "beside" else 1 << 24,
    )


def write(store: MessageStore, number: int) -> None:
    """Write a unit every third time, else a message to one queue."""
    body = b"%d" % number
    if number % 3:
        store.append([append_of("lines", 0, [body])]).result()
    else:
        key = StageKey("job", 1, number, 0, 0, 0)
        store.stage(
            key, 0, chunk_of(*(section_of("counts", queue, [body]) for queue in range(QUEUES)))
        )
        store.commit_unit([key], [append_of("commits", 0, [body])]).result()
        store.drop_staged("job", lambda each: each != key)
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def main(path: str, kind: str) -> None:
    with MessageStore.open(Path(path), store_settings(kind)) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        number = 1 + sum(store.bounds(*key).max_offset for key in store.queues())
        while True:
            write(store, number)
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
