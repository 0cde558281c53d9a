"""Where whole files are: folders and buckets, behind one small interface."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from headrace.connect import (
    Config,
    ConfigProblem,
    Secret,
    between,
    declare,
    key,
    matching,
)
from headrace.connect.connectors.offsets import sync_folder, write_synced, write_whole
from headrace.connect.connectors.storage.formats import Readable, ReadyFile, is_unfinished
from headrace.errors import ConnectionFailedError, ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.records import Position


#: The shapes of a URI, which may also be the path of a folder.
PLACE = matching(
    r"s3://[^/]+(?:/.*)?|file:///.*|(?!s3:|file:|[\w+.-]+://).+",
    "a path, file:///folder or s3://bucket/prefix",
)
_GROUP = "S3"

S3_KEYS = declare(
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


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket and the prefix that a URI names; of a folder nothing, and its path.

    >>> split_uri("s3://lake/raw/shop/"), split_uri("file:///data/a%20b"), split_uri("data")
    (('lake', 'raw/shop'), ('', '/data/a b'), ('', 'data'))
    """
    if uri.startswith("s3://"):
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        return bucket, prefix.strip("/")
    return "", unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


def prefixes_of(config: Config) -> list[str]:
    """Return the prefixes of a source's bucket that it reads."""
    base = split_uri(config["uri"])[1]
    return [f"{base}/{prefix.strip('/')}".strip("/") for prefix in config["prefixes"] or [""]]


def place_problems(config: Config) -> Iterator[ConfigProblem]:
    """Name keys that the config's kind of place lacks, and those that do not fit together."""
    kind, other, foreign = "folder", "s3://bucket/prefix", {*S3_KEYS.by_name, "prefixes"}
    if split_uri(config["uri"])[0]:
        kind, other, foreign = "bucket", "file:///folder", {"settle.ms"}
    for name in sorted(foreign & config.keys() & config.texts.keys()):
        message = f"There is no key {name} for a {kind}: it needs a uri such as {other}."
        yield ConfigProblem(name, message)
    if (config["access.key.id"] is None) != (config["secret.access.key"] is None):
        message = "access.key.id and secret.access.key belong together: give both, or neither."
        yield ConfigProblem("secret.access.key", message)


def opened(config: Config) -> Storage:
    """Return the folder, or the whole bucket, that a config's URI names.

    Raises
    ------
    ConnectorConfigError
        There is none, or it may not be used.
    """
    bucket, path = split_uri(config["uri"])
    return Bucket.of(config, bucket) if bucket else DiskFolder.existing(Path(path))


class Storage(ABC):
    """Whole files by their names, in a folder or below a prefix of a bucket."""

    #: Whether a file may have been appended to.
    appends: ClassVar[bool] = False
    #: How CSV and JSON lines are compressed, and how often new files are looked for, by default.
    compression: ClassVar[str]
    scan_interval: ClassVar[timedelta]

    def __init__(self, files: fs.FileSystem, root: str) -> None:
        self.files = files
        self.root = root

    def __str__(self) -> str:
        """Name the place."""
        return self.root

    def below(self, name: str) -> Self:
        """Return a place within."""
        inner = name.strip("/")
        return type(self)(self.files, self.path(inner)) if inner else self

    @abstractmethod
    def at(self, uri: str) -> Storage:
        """Return another place: a folder, or what the same bucket has below a prefix."""

    @abstractmethod
    def ready(self, config: Config) -> Iterator[ReadyFile]:
        """Yield the files that a source is to read, in this order."""

    @abstractmethod
    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file as a partition of a source."""

    @abstractmethod
    def name_of(self, partition: Position) -> str | None:
        """Return the file that a partition of a source names; ``None``: none of this place."""

    def path(self, name: str) -> str:
        """Return the path of a file, by which Arrow and messages know it."""
        return f"{self.root}/{name}"

    def found(self) -> Iterator[tuple[str, fs.FileInfo]]:
        """Yield all files with their names."""
        where = fs.FileSelector(self.root, allow_not_found=True, recursive=True)
        with self._telling(""):
            infos = self.files.get_file_info(where)
        for info in infos:
            if info.type is fs.FileType.File:
                yield info.path.removeprefix(self.path("")), info

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [name for name, _ in self.found()]

    def readable(self, name: str) -> Readable:
        """Return a file as one that can be opened."""
        path = self.path(name)
        opened = partial(self.files.open_input_file, path)
        return Readable(path, opened, partial(self.outage, path=path))

    def read(self, name: str) -> bytes | None:
        """Return a file; ``None`` where there is none."""
        try:
            with self._telling(name) as path, self.files.open_input_stream(path, None) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    @abstractmethod
    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write a file, which is there whole or not at all, whatever comes after."""

    def stage(self, name: str, content: pa.Buffer) -> None:
        """Write a file before the commit that it is part of; readers may see it."""
        self.write(name, content)

    def publish(self, name: str) -> None:  # noqa: B027  # where readers see what is staged
        """Show a file that was staged, behind the commit; it may be shown already."""

    def discard(self, name: str) -> None:
        """Remove a file that was staged, if it is there."""
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError), self._telling(name) as path:
            self.files.delete_file(path)

    def move(self, name: str, place: Storage) -> None:
        """Move a file to another place of the same storage, if it is there."""
        target = place.path(name)
        with suppress(FileNotFoundError), self._telling(name) as path:
            self.files.create_dir(target.rpartition("/")[0])
            self.files.move(path, target)

    def outage(self, error: OSError, path: str) -> Exception | None:
        """Return the failure where it is the storage that failed; ``None``: it is the content."""
        del error, path
        return None

    @contextmanager
    def _telling(self, name: str) -> Iterator[str]:
        path = self.path(name)
        try:
            yield path
        except OSError as error:
            if (outage := self.outage(error, path)) is None:
                raise
            raise outage from error


class DiskFolder(Storage):
    """A folder on a disk; it is made when something is written to it."""

    appends: ClassVar[bool] = True
    compression: ClassVar[str] = "none"
    scan_interval: ClassVar[timedelta] = timedelta(seconds=1)

    @classmethod
    def of(cls, folder: Path) -> DiskFolder:
        """Return a folder, which may be missing."""
        return cls(fs.LocalFileSystem(), str(folder.absolute()))

    @classmethod
    def existing(cls, folder: Path) -> DiskFolder:
        """Return a folder that has to be there.

        Raises
        ------
        ConnectorConfigError
            Where it is not.
        """
        if not folder.is_dir():
            message = f"The folder {folder} does not exist."
            raise ConnectorConfigError(message, hint="Make it, or correct the key uri.")
        return cls.of(folder)

    def at(self, uri: str) -> DiskFolder:
        """Return the folder of a URI, which may be missing."""
        return self.of(Path(split_uri(uri)[1]))

    def ready(self, config: Config) -> Iterator[ReadyFile]:
        """Yield the files that nobody writes to any more, in the order of their names."""
        folder = Path(self.root)
        latest = time.time_ns() - int(config["settle.ms"].total_seconds() * 1e9)
        for path in sorted(folder.glob(config["files"])):
            name = path.relative_to(folder).as_posix()
            if is_unfinished(name):
                continue
            try:
                state = path.stat()
            except FileNotFoundError:  # moved away since it was listed
                continue
            if path.is_file() and state.st_mtime_ns <= latest:
                yield ReadyFile(name, state.st_size, state.st_mtime_ns)

    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file by its path below the folder."""
        return {"file": name}

    def name_of(self, partition: Position) -> str | None:
        """Return the path of the file."""
        return partition.get("file")

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write a file, which is on disk before this returns."""
        write_whole(self._made(name), content)

    def stage(self, name: str, content: pa.Buffer) -> None:
        """Write a file under a name that readers pass over."""
        path = self._made(_hidden(name))
        write_synced(path, content)
        sync_folder(path.parent)

    def publish(self, name: str) -> None:
        """Rename a file that was staged to what it is called."""
        path = Path(self.path(name))
        with suppress(FileNotFoundError):
            Path(self.path(_hidden(name))).replace(path)
            sync_folder(path.parent)

    def discard(self, name: str) -> None:
        """Remove a file that was staged."""
        self.remove(_hidden(name))

    def _made(self, name: str) -> Path:
        path = Path(self.path(name))
        _make_folder(path.parent)
        return path


def _hidden(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.tmp"


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


#: What HTTP calls files, by the end of their names.
_KINDS = {
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
    "gz": "application/gzip",
    "zst": "application/zstd",
    "json": "application/json",
    "arrow": "application/vnd.apache.arrow.file",
}


class Bucket(Storage):
    """What a bucket has below a prefix."""

    compression: ClassVar[str] = "zstd"
    scan_interval: ClassVar[timedelta] = timedelta(seconds=10)

    @classmethod
    def of(cls, config: Config, name: str) -> Bucket:
        """Return a whole bucket.

        Raises
        ------
        ConnectorConfigError
            There is none, or it may not be used.
        """
        try:
            files = _file_system(config, name)
            found = files.get_file_info(name)
        except OSError as error:
            raise failure_of(error, f"bucket {name}") from error
        if found.type is fs.FileType.NotFound:
            message = f"There is no bucket {name} at {config['endpoint'] or 'Amazon'}."
            raise ConnectorConfigError(message, hint="Make it, or correct uri or endpoint.")
        return cls(files, name)

    def at(self, uri: str) -> Bucket:
        """Return what the bucket has below a URI's prefix."""
        return self.below(split_uri(uri)[1])

    def ready(self, config: Config) -> Iterator[ReadyFile]:
        """Yield the objects below the prefixes, in the order of their keys."""
        listed = (one for prefix in prefixes_of(config) for one in self._listed(prefix, config))
        found = {one.name: one for one in listed}
        yield from sorted(found.values(), key=lambda one: one.name)

    def _listed(self, prefix: str, config: Config) -> Iterator[ReadyFile]:
        for name, info in self.below(prefix).found():
            if not is_unfinished(name) and fnmatchcase(name, config["files"]):
                yield ReadyFile(f"{prefix}/{name}".lstrip("/"), info.size, info.mtime_ns)

    def partition(self, name: str) -> Mapping[str, str]:
        """Name an object by its bucket and key."""
        return {"bucket": self.root, "object": name}

    def name_of(self, partition: Position) -> str | None:
        """Return the object's key."""
        return partition.get("object") if partition.get("bucket") == self.root else None

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write an object."""
        metadata = {"Content-Type": _KINDS[name.rpartition(".")[2]]}
        with self._telling(name) as path:
            # Arrow would compress by itself what a key's ending says is compressed.
            stream = self.files.open_output_stream(path, compression=None, metadata=metadata)
            stream.write(content)
            # An end before this leaves no object: a large one is put together by its close.
            stream.close()

    def move(self, name: str, place: Storage) -> None:
        """Copy an object, and remove it here; buckets have no folders to make."""
        with suppress(FileNotFoundError), self._telling(name) as path:
            self.files.copy_file(path, place.path(name))
            self.files.delete_file(path)

    def outage(self, error: OSError, path: str) -> Exception | None:
        """Return the failure where Amazon's client speaks of one."""
        return failure_of(error, path) if "AWS Error" in str(error) else None


def _file_system(config: Config, bucket: str) -> fs.S3FileSystem:
    endpoint = urlsplit(config["endpoint"] or "https:")
    ca = config["tls.ca"]
    return fs.S3FileSystem(
        access_key=_revealed(config["access.key.id"]),
        secret_key=_revealed(config["secret.access.key"]),
        session_token=_revealed(config["session.token"]),
        role_arn=config["role.arn"],
        anonymous=config["anonymous"],
        region=config["region"] or _region(config, bucket),
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


def _region(config: Config, bucket: str) -> str:
    return "us-east-1" if config["endpoint"] else str(fs.resolve_s3_region(bucket))


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()


def failure_of(error: OSError, what: str) -> ConnectorConfigError | ConnectionFailedError:
    """Return the failure of the config, or of the storage, which may come back.

    >>> denied = OSError("AWS Error ACCESS_DENIED during HeadObject operation")
    >>> type(failure_of(denied, "bucket b")).__name__, failure_of(OSError("reset"), "b").retriable
    ('ConnectorConfigError', True)
    """
    message = f"The storage of {what} does not do what was asked: {error}"
    if _LASTING.search(str(error)):
        hint = "Check bucket, region, keys, and what the keys are allowed to do."
        return ConnectorConfigError(message, hint=hint)
    return ConnectionFailedError(message, hint="Check endpoint, the network and the storage.")
