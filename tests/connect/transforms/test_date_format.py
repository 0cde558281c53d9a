"""Beside the cases of Kafka Connect: what reads back what was written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from headrace.connect.transforms._date_format import DateFormat, day_number, moment_of

MOMENTS = st.integers(-62_135_596_800_000, 253_402_300_799_999)


@given(MOMENTS)
def test_fields_give_the_day_back(milliseconds: int) -> None:
    moment = moment_of(milliseconds)
    assert day_number(moment.year, moment.month, moment.day) == moment.days


@given(MOMENTS)
def test_days_are_those_of_python(milliseconds: int) -> None:
    moment = moment_of(milliseconds)
    theirs = datetime.fromtimestamp(milliseconds // 1000, UTC)
    assert (moment.year, moment.month, moment.day) == (theirs.year, theirs.month, theirs.day)
    assert DateFormat("D u").format(milliseconds) == (
        f"{theirs.timetuple().tm_yday} {theirs.isoweekday()}"
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "yyyyMMddHHmmssSSS",
        "EEE, d MMMM yyyy hh:mm:ss.SSS a z",
        "yyyy D kk:mm:ss.SSS Z",
        "YYYY 'week' w u HH:mm:ss.SSS",
    ],
)
@given(MOMENTS)
def test_text_is_read_as_it_was_written(pattern: str, milliseconds: int) -> None:
    form = DateFormat(pattern)
    assert form.parse(form.format(milliseconds)) == milliseconds


@pytest.mark.parametrize("pattern", ["bb", "yyyy'", "XXXX", "yyyy-MM-ddThh"])
def test_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"quote|three X"):
        DateFormat(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "why"),
    [
        ("yyyy-MM-dd", "2023/01/05", "'-' is missing at character 5"),
        ("yyyy", "", "a number is missing at character 1"),
        ("MMM", "Foo", "January"),
        ("HH z", "10 XYZ", "time zone"),
        ("HH XXX", "10 +0200", "time zone"),
        ("F", "1", "cannot be read"),
        ("yyyyMMdd", "202301", "a number is missing"),
    ],
)
def test_text_that_does_not_follow_says_where(pattern: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DateFormat(pattern).parse(text)


def test_two_digits_of_a_year_are_near_today() -> None:
    year = moment_of(DateFormat("yy").parse("05")).year
    assert year % 100 == 5
    assert -80 <= year - datetime.now(UTC).year < 20
