from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace._setting import DeclaredSettings, options_of, settings_of
from headrace.broker import BrokerSettings, Limits
from headrace.client import ClientSettings
from headrace.connect.worker import WorkerSettings
from headrace.errors import SettingsError
from headrace.settings import JobSettings, settings_page
from headrace.store.compaction import CompactionSettings


def test_page_in_docs_matches_the_code() -> None:
    page = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
    assert page.read_text() == settings_page()


def test_given_setting_wins_over_environment_and_environment_over_default() -> None:
    environ = {"HEADRACE_PARTITIONS": "3", "HEADRACE_START": "latest"}
    settings = JobSettings.from_env(environ, partitions=5, guarantee=None)
    assert (settings.partitions, settings.start, settings.guarantee) == (
        5,
        "latest",
        "exactly_once",
    )


def test_text_is_put_into_the_type_of_the_setting() -> None:
    settings = JobSettings.from_env(
        {
            "HEADRACE_COMMIT_INTERVAL": "250 ms",
            "HEADRACE_DATA_DIR": "/somewhere",
            "HEADRACE_SPARK_CONFIG": "spark.a=1, spark.b=x=y",
        }
    )
    assert settings.commit_interval == timedelta(milliseconds=250)
    assert settings.local_state == Path("/somewhere/state")
    assert settings.spark_config == {"spark.a": "1", "spark.b": "x=y"}


def test_settings_travel_to_another_process() -> None:
    settings = JobSettings(spark_config={"spark.a": "1"})
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"partitions": 0}, "partitions is 0: input should be greater than or equal to 1"),
        ({"partitions": "many"}, "partitions is 'many'"),
        ({"namesrv": "localhost"}, "it does not look like host:port"),
        ({"guarantee": "twice"}, "input should be 'exactly_once' or 'at_least_once'"),
        ({"commit_interval": 5}, "give a timedelta, or text such as '500 ms'"),
        ({"retry_timeout": "5"}, "a duration is a number and a unit"),
        ({"request_timeout": timedelta(0)}, "request_timeout is 0 s"),
    ],
)
def test_wrong_value_is_named_with_its_reason(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        JobSettings(**given)
    assert why in str(caught.value)
    assert "Default:" in str(caught.value)


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        JobSettings.from_env({"HEADRACE_PARTITIONS": "0", "HEADRACE_NAMESRV": "nowhere"})
    assert "partitions" in caught.value.message
    assert "namesrv" in caught.value.message


def test_misspelt_variable_gets_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="did you mean 'HEADRACE_PARTITIONS"):
        JobSettings.from_env({"HEADRACE_PARTITION": "3"})


def test_variables_of_other_parts_are_left_alone() -> None:
    assert JobSettings.from_env({"HEADRACE_DEBUG": "1", "OTHER": "x"}) == JobSettings()


def test_unreadable_map_says_how_to_write_one() -> None:
    with pytest.raises(SettingsError, match="key=value,key=value"):
        JobSettings.from_env({"HEADRACE_SPARK_CONFIG": "spark.a"})


def test_start_is_a_word_or_a_time_with_a_zone() -> None:
    moment = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert JobSettings(start="latest").start == "latest"
    assert JobSettings.from_env({"HEADRACE_START": "2026-05-01T12:00:00Z"}).start == moment
    with pytest.raises(SettingsError, match="without a zone"):
        JobSettings(start=moment.replace(tzinfo=None))
    with pytest.raises(SettingsError, match="'newest': input should be 'first' or 'latest'; or"):
        JobSettings(start="newest")  # type: ignore[arg-type]


def test_settings_that_belong_together_are_given_as_one_text_or_several() -> None:
    settings = BrokerSettings.from_env(
        {"HEADRACE_BROKER_LIMITS": "max_frame=1 MiB,idle_timeout=1.5"},
        compaction=["max_lag=none", "threads=2"],
    )
    assert settings.limits == Limits(max_frame=1 << 20, idle_timeout=timedelta(seconds=1.5))
    assert settings.compaction == CompactionSettings(threads=2)
    with pytest.raises(SettingsError, match=r"no setting max_frames.\n.*did you mean 'max_frame'"):
        BrokerSettings(limits=["max_frames=1"])  # type: ignore[arg-type]
    with pytest.raises(
        SettingsError, match=r"^The setting threads is '0'.*\n.*host is 7: give text"
    ):
        BrokerSettings(compaction=["threads=0"], host=7)  # type: ignore[arg-type]


def test_parts_have_variables_of_their_own() -> None:
    environ = {
        "HEADRACE_ACL": "rules.yml",
        "HEADRACE_BROKER_NAME": "b",
        "HEADRACE_CONNECT_CALL_TIMEOUT": "5 s",
        "HEADRACE_CONNECT_TIMEOUT": "7 s",
        "HEADRACE_TLS": "true",
    }
    broker = BrokerSettings.from_env(environ)
    assert (broker.acl, broker.broker_name, broker.tls) == (Path("rules.yml"), "b", False)
    assert WorkerSettings.from_env(environ).call_timeout == timedelta(seconds=5)
    assert JobSettings.from_env(environ).connect_timeout == timedelta(seconds=7)
    with pytest.raises(SettingsError, match="did you mean 'HEADRACE_BROKER_RETENTION'"):
        BrokerSettings.from_env({"HEADRACE_BROKER_RETENTIONS": "1 d"})


def test_a_text_may_hold_several_values() -> None:
    settings = JobSettings(py_files=["a.py,b.py", Path("c,d.py")])  # type: ignore[arg-type]
    assert settings.py_files == (Path("a.py"), Path("b.py"), Path("c,d.py"))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (BrokerSettings, {"replica_timeout": timedelta(seconds=-1)}),
        (BrokerSettings, {"disk_watermark": 1.5}),
        (ClientSettings, {"retry_backoff": timedelta(0)}),
        (ClientSettings, {"batch_size": 0}),
        (WorkerSettings, {"port": 70_000}),
    ],
)
def test_every_kind_of_settings_names_what_cannot_work(
    kind: type[DeclaredSettings], wrong: dict[str, Any]
) -> None:
    [name] = wrong
    with pytest.raises(SettingsError, match=rf"{name} is .*: input should be .*\n.*Default: "):
        kind(**wrong)


@pytest.mark.parametrize("kind", [JobSettings, BrokerSettings, WorkerSettings])
def test_options_do_not_meet(kind: type[DeclaredSettings]) -> None:
    flags = [option.flag for option in options_of(kind)]
    assert len(set(flags)) == len(flags) == len(settings_of(kind))
