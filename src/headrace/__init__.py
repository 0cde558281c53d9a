"""Exactly-once stream processing in Python over RocketMQ topics, run by Spark."""

from __future__ import annotations

import lazy_loader

# Names are imported at first use: the broker and the command line start without what they do not
# need, and only those of ``headrace.spark`` load PySpark.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
