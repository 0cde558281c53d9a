"""Config keys of ``s3-sink``."""

from __future__ import annotations

from collections.abc import Iterable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headrace.connect import Config, ConfigProblem, Size, at_least, declare, each, key, one_of
from headrace.connect.connectors.formats.writing import WRITERS
from headrace.connect.connectors.s3.connection import S3_KEYS, connection_problems

SINK_KEYS = S3_KEYS | declare(
    key("prefix", str, "What stands before all keys, such as raw/shop.", default=""),
    key("format", str, "What the objects are.", default="parquet", valid=one_of(*WRITERS)),
    key(
        "compression",
        str,
        "How objects are compressed; snappy is for Parquet alone.",
        default="zstd",
        valid=one_of("none", "gzip", "snappy", "zstd"),
    ),
    key(
        "partition.by",
        list,
        "What decides on folders below the topic's, in this order: field, time or both; without, "
        "there are none.",
        default=[],
        valid=each(one_of("field", "time")),
    ),
    key(
        "partition.fields",
        list,
        "The fields that partition.by=field makes folders of, such as country=de; dots lead into "
        "structs.",
        default=[],
    ),
    key(
        "partition.time.field",
        str,
        "The field with the time: milliseconds since 1970, ISO 8601 or a timestamp; the record's "
        "own time without it.",
    ),
    key(
        "partition.time.format",
        str,
        "The folders of a time, as strftime writes them.",
        default="year=%Y/month=%m/day=%d/hour=%H",
    ),
    key("partition.time.zone", str, "The zone of these folders.", default="UTC"),
    key(
        "object.max.rows",
        int,
        "Most rows of an object; a batch with more makes several.",
        default=1_000_000,
        valid=at_least(1),
    ),
    key(
        "object.max.bytes",
        Size,
        "Most bytes of an object, as its rows take up memory before they are written.",
        default=128 << 20,
        valid=at_least(1),
    ),
)


def sink_problems(config: Config) -> Iterable[ConfigProblem]:
    """Name what does not fit together."""
    yield from connection_problems(config)
    if config["compression"] == "snappy" and config["format"] != "parquet":
        message = "snappy is for Parquet: choose gzip, zstd or none."
        yield ConfigProblem("compression", message)
    if ("field" in config["partition.by"]) != bool(config["partition.fields"]):
        message = "partition.by=field and partition.fields belong together: give both, or neither."
        yield ConfigProblem("partition.fields", message)
    try:
        ZoneInfo(config["partition.time.zone"])
    except (ZoneInfoNotFoundError, ValueError):
        message = f"There is no time zone {config['partition.time.zone']}: Europe/Berlin is one."
        yield ConfigProblem("partition.time.zone", message)
