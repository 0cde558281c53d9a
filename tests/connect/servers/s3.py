"""Adobe's S3Mock: storage that speaks S3, with buckets for single tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pyarrow import fs

from tests.connect.servers.starting import running_server

SCRIPT = Path(__file__).parent / "storage"
_numbers = itertools.count(1)
_KEYS = {"access.key.id": "somebody", "secret.access.key": "swordfish"}


@dataclass(frozen=True)
class S3Bucket:
    """A bucket of one test."""

    name: str
    endpoint: str
    files: fs.S3FileSystem = field(repr=False)
    http: httpx.Client = field(repr=False)

    @property
    def config(self) -> Mapping[str, str]:
        """The config that reaches it."""
        return {"uri": self.uri(), "endpoint": self.endpoint, "region": "us-east-1", **_KEYS}

    def uri(self, prefix: str = "") -> str:
        """Return what connectors call the place below a prefix."""
        return f"s3://{self.name}/{prefix}"

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self.http.put(f"{self.endpoint}/{self.name}/{key}", content=content).raise_for_status()

    def get(self, key: str) -> bytes:
        """Read an object."""
        answer = self.http.get(f"{self.endpoint}/{self.name}/{key}")
        return answer.raise_for_status().content

    def listed(self, prefix: str = "") -> list[str]:
        """List the objects below a prefix."""
        where = f"{self.name}/{prefix}".rstrip("/")
        found = self.files.get_file_info(
            fs.FileSelector(where, recursive=True, allow_not_found=True)
        )
        return sorted(
            one.path.removeprefix(f"{self.name}/") for one in found if one.type is fs.FileType.File
        )


@dataclass(frozen=True)
class S3Server:
    """Where the storage is."""

    endpoint: str
    http: httpx.Client = field(repr=False)

    def bucket(self) -> S3Bucket:
        """Make a bucket that no other test has."""
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        self.http.put(f"{self.endpoint}/{name}").raise_for_status()
        files = fs.S3FileSystem(
            access_key=_KEYS["access.key.id"],
            secret_key=_KEYS["secret.access.key"],
            region="us-east-1",
            endpoint_override=self.endpoint,
        )
        return S3Bucket(name, self.endpoint, files, self.http)


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Start the storage on a free port of 127.0.0.1."""
    with (
        running_server("s3", _command, _answers) as port,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):
        yield S3Server(f"http://127.0.0.1:{port}", http)


def _command(folder: Path, port: int) -> list[str | Path]:
    return [
        SCRIPT,
        "s3",
        "--server.address=127.0.0.1",
        "--server.port=0",
        f"--com.adobe.testing.s3mock.http-port={port}",
        f"--com.adobe.testing.s3mock.store.root={folder}/store",
    ]


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False
