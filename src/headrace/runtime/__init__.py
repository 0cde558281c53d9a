"""Operators at work: processors, state, watermarks, the commit; no Spark in it."""

from __future__ import annotations

import lazy_loader

# Names are imported at first use: only tests need the driver.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
