from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.servers import MEMORY


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, where there is such a place: what a disk may do is simulated."""
    with tempfile.TemporaryDirectory(dir=os.environ[MEMORY]) as folder:
        yield Path(folder)
