"""What clients are driven against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.running import Running, quick_settings, running

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    """A worker that wants the token."""
    settings = quick_settings(token=TOKEN)
    with running(FakeLauncher, positions_of_fakes, settings=settings) as one:
        one.http.headers["Authorization"] = f"Bearer {TOKEN}"
        yield one
