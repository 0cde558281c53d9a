"""Print the figures of the package: ``python -m tests.house``, with ``--passage`` the modules of a count.

It ends with status 1 where a figure is above the most that there may be.
"""

from __future__ import annotations

import sys

from tests.house.figures import MOST, figures, too_large
from tests.house.passage import modules_of_a_count

if "--passage" in sys.argv[1:]:
    entered = modules_of_a_count()
    print("\n".join(entered))
    print(f"{len(entered)} modules from Stream.count() to the disk")
else:
    found = figures()
    for name, figure in found.items():
        print(f"{name:32} {figure:<8g}{f'{MOST[name]:g} at most' if name in MOST else ''}".rstrip())
    if above := too_large(found):
        sys.exit(f"above the most that there may be: {', '.join(above)}")
