"""A node of OpenSearch or Elasticsearch, with indices for single tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.connect.servers.starting import running_server

SCRIPT = Path(__file__).parent / "storage"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class SearchServer:
    """Where the node is."""

    url: str

    def index(self, **mapping: Any) -> str:
        """Make an index that no other test has."""
        name = f"index-{os.getpid()}-{next(_numbers)}"
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        self.ask("PUT", name, {"settings": settings, "mappings": mapping})
        return name

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Make a request."""
        url = f"{self.url}/{path}"
        answer = httpx.request(method, url, json=body, trust_env=False, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def documents(self, index: str) -> dict[str, Any]:
        """Give all documents of an index by their ids."""
        self.ask("POST", f"{index}/_refresh")
        found = self.ask("POST", f"{index}/_search", {"size": 10_000})
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}


@contextmanager
def running_search(kind: str) -> Iterator[SearchServer]:
    """Start a node on a free port of 127.0.0.1: ``opensearch`` or ``elasticsearch``."""

    def command(folder: Path, port: int) -> list[str | Path]:
        return [SCRIPT, "search", kind, folder, str(port)]

    with running_server(kind, command, _answers) as port:
        yield SearchServer(f"http://127.0.0.1:{port}")


def _answers(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/_cluster/health"
    try:
        return httpx.get(url, trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False
