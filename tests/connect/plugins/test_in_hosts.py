"""A package of somebody else in real hosts: found by its name, validated, run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from headrace.connect.hosts import TaskChannel
from headrace.connect.plugins.template import write_project
from headrace.connect.worker import HostSpec, PluginCall, Started
from tests.connect.hosts.running import Heard, begun, launcher_in, on_loop

CONFIG = {
    "name": "shop",
    "connector.class": "MyShopSource",
    "topic": "readings",
    "sensors": "kitchen,cellar",
    "interval.ms": "0",
    "value.converter": "Json",
    "value.converter.schemas.enable": "false",
    "transforms": "to",
    "transforms.to.type": "RegexRouter",
    "transforms.to.regex": ".*",
    "transforms.to.replacement": "$0-of-sensors",
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template's package, as an installation of it looks."""
    write_project("my-shop", "source", tmp_path)
    site = tmp_path / "my-shop" / "src"
    metadata = site / "my_shop-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-shop\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[headrace.connect.connectors]\nmy-shop-source = my_shop.source:MyShopSourceConnector\n"
        "[headrace.connect.transforms]\nmy-broken = my_shop.gone:Transform\n"
    )
    monkeypatch.syspath_prepend(site)


@pytest.mark.requirement(46)
@on_loop
async def test_installed_package_is_listed_validated_and_run(tmp_path: Path, shop: None) -> None:
    async with launcher_in(tmp_path) as launcher:
        listed = await launcher.call(PluginCall(what="plugins"))
        found = {one["class"]: one for one in listed.value}
        assert found["my_shop.source.MyShopSourceConnector"]["version"] == "0.1.0"
        assert "No module named 'my_shop.gone'" in found["my_shop.gone.Transform"]["error"]

        valid = PluginCall(what="validate", connector_class="my-shop-source", config=CONFIG)
        answer = await launcher.call(valid)
        assert (answer.failure, answer.value["error_count"]) == (None, 0)

        heard = Heard()
        spec = HostSpec(
            kind="task", connector="shop", task=0, generation=1, config=CONFIG, role="source"
        )
        await launcher.launch(spec, begun(heard))
        with TaskChannel((await heard.first(Started)).address) as channel:
            given = await asyncio.to_thread(
                channel.poll, 1, max_records=2, wait=timedelta(seconds=10)
            )
    first = given.rows.to_pylist()[0]
    assert first["topic"] == "readings-of-sensors"
    assert orjson.loads(first["value"])["sensor"] == "kitchen"
