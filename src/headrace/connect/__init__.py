"""Connect: move data between RocketMQ topics and everything else.

This is the face for people who write plugins::

    from headrace.connect import SourceConnector, SourceRecord, SourceTask, declare, key

Names are imported at first use.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
