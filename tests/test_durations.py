from datetime import timedelta

import pytest

from headrace.durations import EXAMPLES, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *zip(EXAMPLES, (0.5, 2, 300, 5400, 86_400, 300), strict=True),
        ("90s", 90),
        (" 1.5 Minutes ", 90),
        ("5m", 300),
        ("1 h 30 min", 5400),
        ("1d12h", 129_600),
        ("0 s", 0),
        ("p1d", 86_400),
        ("P1DT2H", 93_600),
        ("PT0.25S", 0.25),
    ],
)
def test_duration_is_read_and_read_again_as_it_is_written(text: str, seconds: float) -> None:
    duration = parse_duration(text)
    assert duration == timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "-5 s", "s", "5 parsecs", "30m1h", "1s 2s", "1.2.3 s", "1,5 s", "1h 5", "9e9 d"),
        *("p", "PT", "P1M", "PT5", "PT5M3H", "1PT5M"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match="a number and a unit: 500 ms, 2 s"):
        parse_duration(text)


def test_duration_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than a duration can be"):
        parse_duration("9999999999999 d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0015, "1.5 ms"), (0.5, "500 ms"), (60, "1 min"), (90, "90 s"), (7200, "2 h")],
)
def test_duration_is_written_in_its_longest_whole_unit(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text
