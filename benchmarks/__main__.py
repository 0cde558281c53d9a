"""Runs measurements: ``python -m benchmarks [--peers] [--runs N] [MEASURE ...]``."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.measures import DEFAULT_RUNS, chosen, run_all


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help="measures; default: all")
    parser.add_argument("--peers", action="store_true", help="also those beside a real RocketMQ")
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="runs of each; at least 3")
    options = parser.parse_args()
    for module in pkgutil.iter_modules(benchmarks.__path__, "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    try:
        selected = chosen(options.measures, peers=options.peers)
    except ValueError as error:
        parser.error(str(error))
    path = run_all(selected, max(DEFAULT_RUNS, options.runs))
    sys.stderr.write(f"Kept in {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
