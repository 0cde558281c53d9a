"""Headrace beside Kafka Connect 4.1: the same requests, and every difference in one table.

What Kafka Connect answers is recorded, so that most runs need none; one test asks a real one
whether it still answers that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.connect.hosts import HostSettings
from tests.connect.fakes.launcher import FakePositions
from tests.connect.hosts.running import WithoutData
from tests.connect.rest.compatibility.answers import answers_of
from tests.connect.rest.compatibility.differences import (
    DIFFERENCES,
    Aspect,
    aspects_that_differ,
    table,
)
from tests.connect.rest.compatibility.recording import answers_of_kafka_connect, recorded
from tests.connect.rest.compatibility.requests import GROUPS, Asked
from tests.connect.running import quick_settings, running

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "connect-rest.md"
REQUESTS = [step.id for steps in GROUPS.values() for step in steps if isinstance(step, Asked)]


def in_the_table() -> dict[str, set[Aspect]]:
    """In what the table says that the answers differ, request by request."""
    found: dict[str, set[Aspect]] = {}
    for difference in DIFFERENCES:
        for aspect, requests in difference.shown.items():
            for request in requests:
                assert aspect not in found.setdefault(request, set()), request
                found[request].add(aspect)
    return found


def test_all_requests_are_recorded_under_names_of_their_own() -> None:
    assert len(REQUESTS) >= 150
    assert list(recorded()) == REQUESTS
    assert in_the_table().keys() <= set(REQUESTS)


def test_the_table_is_in_the_docs() -> None:
    assert table() in DOCS.read_text()
    assert f"{len(REQUESTS)} requests" in DOCS.read_text()


@pytest.mark.slow
def test_every_difference_is_in_the_table(tmp_path: Path) -> None:
    settings = quick_settings(start_timeout="60 s", graceful_timeout="5 s", kill_timeout="2 s")
    hosts = HostSettings(call_timeout=60.0, probe_interval=0)
    positions = FakePositions()
    with running(
        lambda: WithoutData(tmp_path / "run", hosts), lambda _: positions, settings=settings
    ) as worker:
        here = answers_of(worker.url, tmp_path)
    kafka = recorded()
    found = {name: aspects_that_differ(kafka[name], here[name]) for name in REQUESTS}
    differing = {name: aspects for name, aspects in found.items() if aspects}
    assert differing == in_the_table(), {
        name: (kafka[name], here[name])
        for name in differing.keys() | in_the_table().keys()
        if differing.get(name) != in_the_table().get(name)
    }


# A Java starts, and Kafka Connect takes its time for each change.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_kafka_connect_answers_as_recorded(kafka: Any, tmp_path: Path) -> None:
    asked, known = answers_of_kafka_connect(kafka, tmp_path), recorded()
    assert asked == known, {
        name: (known[name], asked[name]) for name in REQUESTS if known[name] != asked[name]
    }
