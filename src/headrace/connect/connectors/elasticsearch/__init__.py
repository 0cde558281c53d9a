"""Elasticsearch and OpenSearch: records as documents, and documents as records."""

from __future__ import annotations

from headrace.connect.connectors.elasticsearch.sink import (
    ElasticsearchSinkConnector,
    ElasticsearchSinkTask,
)
from headrace.connect.connectors.elasticsearch.source import (
    ElasticsearchSourceConnector,
    ElasticsearchSourceTask,
)

__all__ = [
    "ElasticsearchSinkConnector",
    "ElasticsearchSinkTask",
    "ElasticsearchSourceConnector",
    "ElasticsearchSourceTask",
]
