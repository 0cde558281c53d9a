"""Outside programs that call the REST API, each found where `make setup` and `make clients` put it.

Some of them cannot share an environment with the tests: see requirements/clients.in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["call"]

_HERE = Path(sys.executable).parent
_APART = Path(sys.prefix) / "clients" / "bin"


def call(
    name: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    given: str = "",
    patience: float = 60.0,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Call a program, with text on its standard input; give how it ended and what it wrote."""
    found = [folder / name for folder in (_APART, _HERE) if (folder / name).exists()]
    assert found, f"{name} is among the tools of the tests: make clients installs it"
    environment = {**os.environ, **(variables or {})}
    # Ours must not be seen by an environment that is not ours.
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [str(found[0]), *arguments],
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience,
        cwd=folder,
    )
