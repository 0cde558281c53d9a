"""What a nursery does once, so that none of its hosts has to.

Hosts share the memory of all that was there when they were forked: what is imported, and what is
made when something is used for the first time.
"""

from __future__ import annotations

import importlib
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.handling import sink_chain, source_chain
from headrace.connect.hosts.frames import packed, unpacked
from headrace.connect.plugins import SinkTask
from headrace.connect.plugins.builtin import BUILTIN
from headrace.connect.plugins.catalog import Catalog
from headrace.connect.records import SourceBatch, SourceRecord
from headrace.connect.values import schema_of_arrow

__all__ = ["warm_up"]

_CONVERTERS: tuple[dict[str, str], ...] = (
    {},
    {"value.converter": "json", "value.converter.schemas.enable": "false"},
)


def warm_up() -> None:
    """Look for plugins, import those that come with Headrace, and take records through a chain."""
    Catalog.installed()
    for module in dict.fromkeys(one.target.partition(":")[0] for one in BUILTIN):
        # One whose extra is not installed says so where it is asked for.
        with suppress(ImportError):
            importlib.import_module(module)
    for config in _CONVERTERS:
        _move(config)


def _move(config: dict[str, str]) -> None:
    source = source_chain("warm-up", 0, config, wait=lambda _: False)
    record = SourceRecord(partition={}, offset={}, topic="t", value={"n": 1})
    column = pa.array([record.value])
    batch = SourceBatch(
        partition={}, offset={}, topic="t", value=column, value_schema=schema_of_arrow(column.type)
    )
    sink = sink_chain("warm-up", 0, config, wait=lambda _: False)
    for polled in ([record], batch):
        rows = unpacked(bytearray(packed(source.encode(polled).rows)))
        message = {
            "topic": pc.unique(rows["topic"])[0].as_py(),
            "broker": "b",
            "queue": 0,
            "offset": 0,
            "value": rows["value"][0].as_py(),
        }
        sink.deliver(pa.RecordBatch.from_pylist([message], schema=SINK_SCHEMA), _Nothing())


class _Nothing(SinkTask):
    """Takes records and does nothing with them."""

    def put(self, records: object) -> None:
        """Let them go."""
