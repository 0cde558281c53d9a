from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.settings import JobSettings, settings_page


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
            "HEADRACE_BATCH_INTERVAL": "250 ms",
            "HEADRACE_DATA_DIR": "/somewhere",
            "HEADRACE_SPARK_CONFIG": "spark.a=1, spark.b=x=y",
        }
    )
    assert settings.batch_interval == timedelta(milliseconds=250)
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
        ({"batch_interval": 5}, "give a timedelta, or text such as '500 ms'"),
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
