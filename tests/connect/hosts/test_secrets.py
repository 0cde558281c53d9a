"""Secrets stay in the process of the plugin that needs them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.hosts import ProcessLauncher, TaskChannel
from headrace.connect.worker import (
    Failed,
    PluginAnswer,
    PluginCall,
    Started,
    StopRaised,
    Unhealthy,
)
from headrace.errors import ProcessingError
from tests.connect.hosts.leaky import PASSWORD, TOKEN
from tests.connect.hosts.running import Heard, launched, launcher_in, on_loop
from tests.connect.hosts.test_data_channel import Q0, rows

LEAKY = "tests.connect.hosts.leaky:LeakyConnector"


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return {
        "connector.class": LEAKY,
        "topics": "t",
        "password": PASSWORD,
        "token": f"${{file:{tmp_path}/token}}",
    }


def assert_hidden(text: str, *, quoted: bool = True) -> None:
    assert PASSWORD not in text
    assert "swordfish" not in text
    assert TOKEN not in text
    assert not quoted or "********" in text


def everything_written(folder: Path) -> str:
    return "".join(log.read_text() for log in (folder / "run").rglob("*.log"))


async def tasks_of(launcher: ProcessLauncher, config: dict[str, str]) -> PluginAnswer:
    """What a connector that runs says of its tasks."""
    texts: Any = {name.replace(".", "_"): text for name, text in config.items()}
    host, heard = await launched(launcher, role="sink", task=None, **texts)
    await heard.first(Started)
    answer = await host.task_configs()
    assert answer is not None
    return answer


async def leak(launcher: ProcessLauncher, config: dict[str, str], where: str) -> Heard:
    texts: Any = {name.replace(".", "_"): text for name, text in config.items()}
    host, heard = await launched(launcher, role="sink", where=where, name=where, **texts)
    if where == "start":
        await heard.first(Failed)
    elif where == "healthy":
        await heard.first(Unhealthy)
    elif where == "put":
        with TaskChannel((await heard.first(Started)).address) as channel:
            await asyncio.to_thread(channel.open, [Q0], {})
            with pytest.raises(ProcessingError) as refused:
                await asyncio.to_thread(channel.put, 1, [(Q0, 0, 1)], rows(Q0, 0, 1))
            assert_hidden(str(refused.value))
            await heard.first(Failed)
    else:
        await heard.first(Started)
        host.ask_stop()
        await heard.first(StopRaised)
    return heard


@on_loop
async def test_no_cause_no_log_and_no_answer_of_the_engine_has_a_secret(
    tmp_path: Path, config: dict[str, str]
) -> None:
    async with launcher_in(tmp_path, probe_interval=0.2) as launcher:
        for where in ("start", "put", "healthy", "stop"):
            heard = await leak(launcher, config, where)
            for event in heard.events:
                told = repr(event)
                assert_hidden(told, quoted=isinstance(event, (Failed, StopRaised, Unhealthy)))
        written = everything_written(tmp_path)
    for word in ("printed ********", "written ********", "WARNING", "refused ********"):
        assert word in written
    assert_hidden(written)


@on_loop
async def test_questions_are_answered_without_secrets(
    tmp_path: Path, config: dict[str, str]
) -> None:
    async with launcher_in(tmp_path) as launcher:
        leaking = {"name": "s", **config, "where": "validate"}
        checked = await launcher.call(
            PluginCall(what="validate", connector_class=LEAKY, config=leaking)
        )
        assert checked.value["error_count"] == 1
        assert_hidden(repr(checked))
        handed_on = await tasks_of(launcher, config | {"where": "tasks"})
        assert handed_on.failure is not None
        assert "gave a secret of the config under 'word'" in handed_on.failure.summary
        assert_hidden(repr(handed_on), quoted=False)


@on_loop
async def test_task_configs_keep_references_to_what_is_outside(
    tmp_path: Path, config: dict[str, str]
) -> None:
    async with launcher_in(tmp_path) as launcher:
        answer = await tasks_of(launcher, config)
    reference = config["token"]
    assert answer.value == [{"token": reference, "path": f"/srv/{reference}/a"}]
