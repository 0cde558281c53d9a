"""Runs measurements: ``python -m benchmarks [--peers] [--small] [MEASURE ...]``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.against import compare
from benchmarks.measures import LEAST_RUNS, Plan, Runner, chosen, discover
from benchmarks.sizes import FULL, SMALL
from benchmarks.table import results_table

__all__ = ["main"]


def main() -> int:
    """Do what the command line says."""
    parser = _parser()
    options = parser.parse_args()
    if options.table:
        sys.stdout.write(results_table(options.table))
        return 0
    discover()
    try:
        selected = chosen(options.measures, peers=options.peers)
    except ValueError as error:
        parser.error(str(error))
    # A polite end must end brokers and jobs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.against:
        more = ["--small"] if options.small else ["--runs", str(options.runs)]
        try:
            found = compare(options.against, selected, more=more)
        except subprocess.CalledProcessError as error:
            parser.error(str(error))
        sys.stdout.write(found.table())
        return 1 if found.worse() else 0
    runs = options.runs or 1 if options.small else max(LEAST_RUNS, options.runs)
    runner = Runner(Plan(runs, SMALL if options.small else FULL), options.results)
    runner.run(selected)
    for names, reason in runner.failures.items():
        sys.stderr.write(f"No result for {names}: {reason}\n")
    sys.stderr.write(f"Kept in {runner.path}\n")
    return 1 if runner.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    add = parser.add_argument
    add("measures", nargs="*", metavar="MEASURE", help="measures; default: all of ours")
    add("--peers", action="store_true", help="measure other systems, and what compares with them")
    add("--runs", type=int, default=0, help=f"runs of each; at least {LEAST_RUNS}")
    add("--small", action="store_true", help="see that it works: little work, one run")
    add("--against", metavar="COMMIT", help="measure another commit beside this one, in turns")
    add("--results", type=Path, default=Path("bench-results"), help="folder of result files")
    add("--table", type=Path, nargs="+", metavar="FILE", help="print results as Markdown instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
