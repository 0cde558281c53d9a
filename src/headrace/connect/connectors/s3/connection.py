"""How the connectors reach a bucket: config keys, the file system made of them, what its errors say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs

from headrace.connect import Config, ConfigProblem, Secret, between, declare, key, matching
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
