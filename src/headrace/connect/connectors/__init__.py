"""The connectors that come with Headrace, a module or folder each.

They use nothing but :mod:`headrace.connect`, as connectors of other people do.
"""

from __future__ import annotations

__all__: list[str] = []
