"""Run a broker: ``python -m headrace.broker --data DIR``."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace._setting import options_of
from headrace.broker.embedded import READY_LINE, ExitCode
from headrace.broker.network.listener import raise_limit
from headrace.broker.replication.remote import PeerSecurity
from headrace.broker.server import BrokerServer
from headrace.broker.settings import BrokerSettings
from headrace.errors import HeadraceError, SettingsError, StoreError, StoreLockedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until it is asked to stop, and return its exit code."""
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


async def _serve(options: Namespace, settings: BrokerSettings) -> None:
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


def _settings(options: Namespace) -> BrokerSettings:
    names = [option.name for option in options_of(BrokerSettings)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return BrokerSettings(**given, peers=PeerSecurity.from_env())


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m headrace.broker", description="Name server and broker on one port."
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="Folder for everything that is kept.")
    add("--port", type=int, default=9876, help="Port to listen on (9876); 0 picks a free one.")
    add("--until-eof", action="store_true", help="Stop when the standard input ends.")
    for option in options_of(BrokerSettings):
        more: dict[str, Any] = {"dest": option.name, "help": option.help.replace("%", "%%")}
        if option.kind is bool:
            more["action"] = BooleanOptionalAction
        else:
            more["action"] = "append" if option.kind == list[str] else "store"
            more["metavar"] = option.metavar
        add(option.flag, **more)
    return parser


if __name__ == "__main__":
    sys.exit(main())
