from __future__ import annotations

import pytest

from headrace.broker.static_topics import Rate


def test_rate_without_samples_is_zero() -> None:
    assert Rate().per_second() == (0.0, 0.0, 0.0)


def test_each_span_has_its_own_rate() -> None:
    rate = Rate()
    total = 0
    for second in range(0, 1201, 5):
        total += 5 * (100 if second > 1190 else 10 if second > 1140 else 1)
        rate.note(now=float(second), total=total)
    short, middle, long = rate.per_second()
    assert short == pytest.approx(100)
    assert middle == pytest.approx((10 * 100 + 50 * 10) / 60)
    assert long == pytest.approx((10 * 100 + 50 * 10 + 540) / 600)
