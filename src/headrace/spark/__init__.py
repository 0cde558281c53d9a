"""Run topologies on Spark Structured Streaming."""

from __future__ import annotations

import lazy_loader

# Names are imported at first use: each of Spark's Python processes needs a part of this package,
# and what it imports is what a job waits for at its start.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
