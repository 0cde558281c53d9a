from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connect.config.providers import restrict
from tests.run.servers import MEMORY


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    """Hosts of simulated workers are threads of this process: what they restrict is open after them."""
    yield
    restrict(None)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, where there is such a place: what a disk may do is simulated."""
    with tempfile.TemporaryDirectory(dir=os.environ[MEMORY]) as folder:
        yield Path(folder)
