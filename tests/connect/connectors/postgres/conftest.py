"""A database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.connect.servers.postgres import PostgresServer

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def dsn(postgres: PostgresServer) -> Iterator[str]:
    """The words that connect to an empty database."""
    with postgres.database() as words:
        yield words


@pytest.fixture
def db(dsn: str) -> Iterator[Connection]:
    """A connection to that database on which each statement commits."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection
