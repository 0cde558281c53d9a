"""A catalog of sample plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connect.plugins.catalog import Catalog, Plugin

SAMPLES = "tests.connect.plugins.samples"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    broken = tmp_path / "shop_raises.py"
    broken.write_text("raise RuntimeError('the licence has run out')")
    broken.with_name("shop_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    return Catalog(
        [
            Plugin(f"{SAMPLES}:NumbersSourceConnector", "connectors", aliases=("numbers-source",)),
            Plugin(f"{SAMPLES}:NowhereSinkConnector", "connectors", aliases=("nowhere-sink",)),
            Plugin(f"{SAMPLES}:Shout", "transforms", aliases=("org.example.Shout$Value",)),
            Plugin(f"{SAMPLES}:ShoutMore", "transforms"),
            Plugin(f"{SAMPLES}:IsLoud", "predicates"),
            Plugin(f"{SAMPLES}:Words", "converters"),
            Plugin("shop_raises:Sink", "connectors", origin="shop"),
            Plugin("shop_exits:Source", "connectors", origin="shop"),
        ]
    )
