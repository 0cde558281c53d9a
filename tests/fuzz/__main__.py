"""Fuzz all decoders: ``python -m tests.fuzz --seconds 600``."""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.fuzzer import Findings, fuzz, storm
from tests.fuzz.live import LiveBroker, LiveConnect
from tests.fuzz.targets import TARGETS

_ROUND = 100
_STORM = 1.0
#: Address space, and memory in use.
_ROOM = 8 << 30
_MOST = 1 << 30
_HANG = 60.0


def main() -> int:
    """Run until time is up or something breaks."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", help="name of one target")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    # Memory without bound ends as a MemoryError, which no decoder may raise.
    resource.setrlimit(resource.RLIMIT_AS, (_ROOM, resource.RLIM_INFINITY))
    with (
        TemporaryDirectory() as folder,
        LiveBroker(Path(folder)) as broker,
        LiveConnect() as connect,
    ):
        targets = [
            target
            for target in (*TARGETS, broker.target(), connect.target())
            if options.only in (None, target.name)
        ]
        seen = {target.name: Findings() for target in targets}
        end = time.monotonic() + options.seconds
        number = options.seed
        while time.monotonic() < end:
            for target in targets:
                number += 1
                # Whoever hangs for so long is shown with its stack.
                faulthandler.dump_traceback_later(_HANG, exit=True)
                try:
                    fuzz(target, _ROUND, number, seen[target.name])
                    storm(target, _STORM, number, seen[target.name])
                except BaseException:
                    print(f"{target.name} broke at seed {number}", flush=True)
                    raise
                faulthandler.cancel_dump_traceback_later()
                used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                assert used < _MOST, f"{used:,} bytes of memory after {target.name}"
    for name, found in seen.items():
        print(
            f"{name:16} {found.inputs:>10,} inputs, {found.refused:>10,} refused, "
            f"longest {found.longest * 1000:6.1f} ms, most memory {found.most_memory / 1e6:6.1f} MB"
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"at most {most:.0f} MiB of memory in use")
    print(f"{sum(found.inputs for found in seen.values()):,} inputs, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
