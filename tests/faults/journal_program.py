"""One driver of a job without Spark, in a process that may be killed: ``NAMESRV FOLDER MARK``."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.runtime.commit.drivers import DriverName
from tests.faults.local_driver import LocalDriver
from tests.faults.word_pipeline import pipeline


def main(namesrv: str, folder: str, mark: str, lease: str = "60 s", batch: str = "20") -> None:
    """Do what there is to do, and end in order."""
    name = str(DriverName.here())
    with LocalDriver(
        namesrv,
        Path(folder),
        int(batch),
        job=pipeline(mark),
        name=name,
        journal=True,
        lease_expiry=lease,
    ) as driver:
        print(f"open {driver.epoch}", flush=True)
        print(f"batches {driver.catch_up()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
