"""Run a broker: ``python -m headrace.broker --data DIR``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import get_args

from headrace.broker.embedded import READY_LINE, ExitCode
from headrace.broker.network.listener import raise_limit
from headrace.broker.replication.remote import PeerSecurity
from headrace.broker.server import BrokerServer
from headrace.broker.settings import BrokerSettings, Limits, TlsMode
from headrace.errors import HeadraceError, SettingsError, StoreError, StoreLockedError

_MIB = 1024 * 1024
_NOT_SETTINGS = (
    "data",
    "port",
    "flush_interval",
    "replica_timeout",
    "no_create",
    "limit",
    "register_with",
    "until_eof",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until it is asked to stop; returns its exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="INFO")
    options = _parser().parse_args(arguments)
    raise_limit()
    try:
        asyncio.run(_serve(options, _settings(options)))
    except StoreLockedError as error:
        return _fail(ExitCode.LOCKED, error)
    except SettingsError as error:
        return _fail(ExitCode.SETTINGS, error)
    except StoreError as error:
        return _fail(ExitCode.STORE, error)
    return 0


def _fail(code: int, error: HeadraceError) -> int:
    sys.stderr.write(f"headrace broker: {error}\n")
    return code


async def _serve(options: argparse.Namespace, settings: BrokerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_eof:
        loop.add_reader(sys.stdin.fileno(), _stop_at_eof, stop)
    data: Path = options.data
    async with BrokerServer(data, options.port, settings) as broker:
        # What is loaded now stays: the collector need not look at it again and again.
        gc.freeze()
        line = READY_LINE.format(address=broker.address, data=data)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        await broker.serve_until(stop)


def _stop_at_eof(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


def _settings(options: argparse.Namespace) -> BrokerSettings:
    given = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name not in _NOT_SETTINGS
    }
    for name in ("flush_interval", "replica_timeout"):
        if (number := getattr(options, name)) is not None:
            given[name] = timedelta(milliseconds=number)
    return BrokerSettings(
        **given,
        create_topics=not options.no_create,
        limits=Limits.parse(options.limit),
        name_servers=tuple(options.register_with),
        peers=PeerSecurity.from_environment(),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.broker", description="Name server and broker on one port."
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder for everything that is kept")
    add("--port", type=int, default=9876, help="port to listen on (9876); 0 picks a free one")
    add("--broker-name", metavar="NAME", help="unique in its cluster (broker-a)")
    add("--cluster", metavar="NAME", help="that it belongs to (DefaultCluster)")
    add(
        "--register-with",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="another name server to register with; may be given again",
    )
    add("--host", help="address to listen on (127.0.0.1)")
    add("--advertised-host", help="address that clients are told to use (the one listened on)")
    add("--flush", choices=["sync", "async"], help="when a message is on disk: at once (sync)")
    add("--flush-interval", type=int, metavar="MS", help="longest delay of async flush (500)")
    add("--segment-size", type=int, metavar="BYTES", help=f"of the log ({256 * _MIB})")
    add("--max-message-size", type=int, metavar="BYTES", help=f"and of a batch ({4 * _MIB})")
    add("--min-free-space", type=int, metavar="BYTES", help="left alone on the disk")
    add("--default-queues", type=int, metavar="N", help="of topics that a message creates (8)")
    add("--acl", type=Path, metavar="FILE", help="accounts: see docs/guides/operate/security.md")
    add(
        "--allow-anyone",
        action="store_true",
        default=None,
        help="listen on other addresses than loopback without accounts",
    )
    add("--tls", action="store_true", default=None, help="take TLS, too; self-signed by default")
    add("--tls-certificate", type=Path, metavar="FILE", help="certificate, PEM")
    add("--tls-key", type=Path, metavar="FILE", help="its key, PEM")
    add("--tls-mode", choices=get_args(TlsMode), help="plain connections, too (permissive)")
    add(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="see docs/guides/operate/security.md",
    )
    add("--follow", metavar="HOST:PORT", help="broker whose log to copy; read-only until promoted")
    add("--follow-from", choices=["oldest", "newest"], help="file of its log to begin with")
    add("--min-replicas", type=int, metavar="N", help="followers that must have a message (0)")
    add("--replica-timeout", type=int, metavar="MS", help="longest wait for them (3000)")
    add("--delay-levels", metavar="SPANS", help="how long messages wait at each delay level")
    add("--until-eof", action="store_true", help="stop when the standard input ends")
    add("--no-create", action="store_true", help="create no topic for a first message")
    return parser


if __name__ == "__main__":
    sys.exit(main())
