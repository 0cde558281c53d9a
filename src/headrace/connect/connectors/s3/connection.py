"""How the connectors reach a bucket: config keys, the file system made of them, what its errors say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyarrow import fs

from headrace.connect import (
    Config,
    ConfigProblem,
    Secret,
    Size,
    at_least,
    between,
    declare,
    each,
    key,
    matching,
    one_of,
)
from headrace.connect.connectors.formats.writing import WRITERS
from headrace.errors import ConnectionFailedError, ConnectorConfigError

_GROUP = "S3"

S3_KEYS = declare(
    key("bucket", str, "The bucket, which exists.", required=True, group=_GROUP),
    key(
        "endpoint",
        str,
        "Where the storage is, such as http://127.0.0.1:9000; Amazon's where none is given.",
        valid=matching(r"https?://[^/]+/?", "a URL such as https://storage.example:9000"),
        group=_GROUP,
    ),
    key(
        "region",
        str,
        "The bucket's region; without it Amazon is asked, and other storage gets us-east-1.",
        group=_GROUP,
    ),
    key(
        "access.key.id",
        Secret,
        "Who asks; without it, and without anonymous, the worker's own environment decides: "
        "AWS_ACCESS_KEY_ID and so on, ~/.aws, the machine's role.",
        group=_GROUP,
    ),
    key("secret.access.key", Secret, "The secret of access.key.id.", group=_GROUP),
    key("session.token", Secret, "What belongs to a key that is only lent.", group=_GROUP),
    key("role.arn", str, "The role to take on, in place of a key.", group=_GROUP),
    key("anonymous", bool, "Whether to ask as nobody.", default=False, group=_GROUP),
    key(
        "path.style",
        bool,
        "Whether the bucket stands in the path of URLs; otherwise in the name of the host. Amazon "
        "always gets the latter.",
        default=True,
        group=_GROUP,
    ),
    key("tls.ca", Path, "File of the certificates that may have signed the storage's."),
    key(
        "request.timeout.ms",
        timedelta,
        "How long the storage may be silent while it answers.",
        default=timedelta(seconds=30),
        importance="low",
    ),
    key(
        "connect.timeout.ms",
        timedelta,
        "How long a connection may take.",
        default=timedelta(seconds=5),
        importance="low",
    ),
    key(
        "request.attempts",
        int,
        "How often a request is made that fails in a way that may pass, with growing pauses.",
        default=8,
        valid=between(1, 100),
        importance="low",
    ),
)

#: What Arrow says of failures that no second try mends.
_LASTING = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET"
    r"|INVALID_SIGNATURE|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|HTTP status (?:301|400|401|403)\b"
)


class Bucket:
    """A bucket, and the names of objects within."""

    def __init__(self, config: Config) -> None:
        self.name: str = config["bucket"]
        try:
            self.files = _file_system(config)
            found = self.files.get_file_info(self.name)
        except OSError as error:
            raise failure_of(error, f"bucket {self.name}") from error
        if found.type is fs.FileType.NotFound:
            message = f"There is no bucket {self.name} at {config['endpoint'] or 'Amazon'}."
            raise ConnectorConfigError(message, hint="Make it, or correct bucket or endpoint.")

    def path(self, key: str) -> str:
        """Return the path that Arrow knows an object by."""
        return f"{self.name}/{key}"


def _file_system(config: Config) -> fs.S3FileSystem:
    endpoint = urlsplit(config["endpoint"] or "https:")
    ca = config["tls.ca"]
    return fs.S3FileSystem(
        access_key=_revealed(config["access.key.id"]),
        secret_key=_revealed(config["secret.access.key"]),
        session_token=_revealed(config["session.token"]),
        role_arn=config["role.arn"],
        anonymous=config["anonymous"],
        region=config["region"] or _region(config),
        scheme=endpoint.scheme,
        endpoint_override=endpoint.netloc or None,
        force_virtual_addressing=not config["path.style"],
        tls_ca_file_path=None if ca is None else str(ca),
        request_timeout=config["request.timeout.ms"].total_seconds(),
        connect_timeout=config["connect.timeout.ms"].total_seconds(),
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=config["request.attempts"]),
        # A small object is one request, not the three of a large one.
        allow_delayed_open=True,
    )


def _region(config: Config) -> str:
    return "us-east-1" if config["endpoint"] else str(fs.resolve_s3_region(config["bucket"]))


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()


def connection_problems(config: Config) -> Iterable[ConfigProblem]:
    """Name what does not fit together."""
    if (config["access.key.id"] is None) != (config["secret.access.key"] is None):
        message = "access.key.id and secret.access.key belong together: give both, or neither."
        yield ConfigProblem("secret.access.key", message)


def failure_of(error: OSError, what: str) -> ConnectorConfigError | ConnectionFailedError:
    """Tell whether the config is at fault, or the storage, which may come back.

    >>> denied = OSError("AWS Error ACCESS_DENIED during HeadObject operation")
    >>> type(failure_of(denied, "bucket b")).__name__, failure_of(OSError("reset"), "b").retriable
    ('ConnectorConfigError', True)
    """
    message = f"The storage of {what} does not do what was asked: {error}"
    if _LASTING.search(str(error)):
        hint = "Check bucket, region, keys, and what the keys are allowed to do."
        return ConnectorConfigError(message, hint=hint)
    return ConnectionFailedError(message, hint="Check endpoint, the network and the storage.")


def outage_of(error: OSError, what: str) -> Exception | None:
    """Return the failure where it is the storage that failed; ``None`` where it is the content.

    >>> outage_of(OSError("zlib inflate failed"), "a.gz") is None
    True
    """
    return failure_of(error, what) if "AWS Error" in str(error) else None


# Config keys of ``s3-sink``.

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
