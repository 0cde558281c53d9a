"""``headrace table``: looks into a compaction topic as a table of keys and values."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._terminal import message_line
from headrace.errors import ConfigurationError, NotFoundError

__all__ = ["table"]


def table(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    key: Annotated[
        str | None, typer.Argument(help="Print this key's value only; without it, all.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only keys that begin so.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with every change, until Ctrl-C.")
    ] = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Print the last value of each key as key, tab, value; a deleted key has no value."""
    from headrace.client import TableReader

    if follow and (key is not None or prefix):
        raise ConfigurationError(
            "--follow shows all keys", hint="leave out the key and --prefix, or pipe into grep"
        )
    with cluster(namesrv, data_dir) as client:
        with TableReader(client, topic) as reader:
            reader.caught_up()
        # It reads no more: what follows begins where it stands.
        positions = reader.statistics().positions
        if key is not None:
            _print_value(topic, key, reader.get(key))
            return
        for name, value in sorted(reader.items(prefix), key=lambda item: str(item[0])):
            sys.stdout.write(message_line(name, value))
        sys.stdout.flush()
        if follow:
            from headrace.cli._messages import print_queues

            asyncio.run(print_queues(client, positions))


def _print_value(topic: str, key: str, value: bytes | None) -> None:
    if value is None:
        raise NotFoundError(
            f"the table of topic {topic!r} has no key {key!r}",
            hint=f"`headrace table {topic}` prints all keys",
        )
    sys.stdout.buffer.write(value + b"\n")
    sys.stdout.flush()
