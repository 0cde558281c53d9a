"""Examples of streams on Spark give what they give in one process."""

from __future__ import annotations

import importlib

import pytest

from examples.streams.running import main
from tests.examples.test_streams import EXPECTED

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["word_count", "window_aggregates", "join_within"])
def test_example_gives_the_same_on_spark(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"examples.streams.{name}")
    monkeypatch.setattr("sys.argv", [name, "--on", "spark"])
    main(module.topology, module.RECORDS)
    rows = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
    assert len(rows) == len(EXPECTED[name])
    if not any("{" in row for row in rows):
        assert set(rows) == {str(row) for row in EXPECTED[name]}
