"""Settings that cannot work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.store import StoreSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_size": 0},
        {"max_message_size": -1},
        {"index_file_units": 0},
        {"checkpoint_bytes": 0},
        {"min_free_space": -1},
        {"flush": "sometimes"},
        {"flush_interval": timedelta(0)},
        {"checkpoint_interval": timedelta(seconds=-1)},
    ],
)
def test_a_setting_that_cannot_work_is_named(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(SettingsError, match=name):
        StoreSettings(**wrong)
