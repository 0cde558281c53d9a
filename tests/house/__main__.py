"""Print the figures of the package: ``python -m tests.house``, with ``--passage`` the modules of a count."""

from __future__ import annotations

import sys

from tests.house.figures import figures
from tests.house.passage import modules_of_a_count

if "--passage" in sys.argv[1:]:
    entered = modules_of_a_count()
    print("\n".join(entered))
    print(f"{len(entered)} modules from Stream.count() to the disk")
else:
    for name, figure in figures().items():
        print(f"{name:32} {figure:g}")
