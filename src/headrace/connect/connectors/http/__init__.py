"""Web services: a source that takes requests (webhooks), and a sink that makes them."""

from __future__ import annotations

from headrace.connect.connectors.http.sink import HttpSinkConnector, HttpSinkTask
from headrace.connect.connectors.http.source import HttpSourceConnector, HttpSourceTask

__all__ = ["HttpSinkConnector", "HttpSinkTask", "HttpSourceConnector", "HttpSourceTask"]
