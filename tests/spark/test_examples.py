"""Examples of streams on Spark give what they give in one process."""

from __future__ import annotations

import importlib

import pytest

from examples.streams.running import main
from tests.examples.test_streams import EXPECTED, shown

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["word_count", "window_aggregates", "join_within"])
def test_example_gives_the_same_on_spark(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"examples.streams.{name}")
    monkeypatch.setattr("sys.argv", [name, "--on", "spark"])
    main(module.topology, module.RECORDS)
    _, _, printed = capsys.readouterr().out.partition("\n\n")
    rows = printed.splitlines()
    assert len(rows) == len(EXPECTED[name])
    if not any("{" in row for row in rows):
        assert set(rows) == {str(shown(row)) for row in EXPECTED[name]}
