"""Levels of loggers reach the processes of plugins: those that run, and those that come."""

from __future__ import annotations

import logging
from pathlib import Path

from headrace.connect.worker import Started
from tests.connect.hosts.running import await_that, launched, launcher_in, on_loop

CHATTY = "tests.connect.hosts.chatty:ChattyConnector"
LOGGER = "headrace.connect.plugin"


def log_of(folder: Path, name: str) -> str:
    return "".join(one.read_text() for one in (folder / "run" / "logs").glob(f"{name}.*.log"))


@on_loop
async def test_level_reaches_a_host_that_runs_and_one_that_comes(tmp_path: Path) -> None:
    async with launcher_in(tmp_path, probe_interval=0.05) as launcher:
        _, heard = await launched(launcher, role="sink", name="first", connector_class=CHATTY)
        await heard.first(Started)
        assert "whispered" not in log_of(tmp_path, "first")
        launcher.set_level(LOGGER, logging.DEBUG)
        await await_that(lambda: "DEBUG headrace.connect.plugin.first" in log_of(tmp_path, "first"))
        assert "whispered at the start" not in log_of(tmp_path, "first")
        _, heard = await launched(launcher, role="sink", name="second", connector_class=CHATTY)
        await heard.first(Started)
        await await_that(lambda: "whispered at the start" in log_of(tmp_path, "second"))


@on_loop
async def test_last_level_holds_in_hosts_to_come_also_for_loggers_below(tmp_path: Path) -> None:
    async with launcher_in(tmp_path, probe_interval=0.05) as launcher:
        launcher.set_level(f"{LOGGER}.first", logging.DEBUG)
        launcher.set_level(LOGGER, logging.INFO)
        launcher.set_level(f"{LOGGER}.second", logging.DEBUG)
        for name in ("first", "second"):
            _, heard = await launched(launcher, role="sink", name=name, connector_class=CHATTY)
            await heard.first(Started)
        await await_that(lambda: "whispered meanwhile" in log_of(tmp_path, "second"))
        assert "whispered" not in log_of(tmp_path, "first")
