"""Hosts: the processes in which plugins run, and everything that is said to them.

``ProcessLauncher`` is what a worker starts them by, ``TaskChannel`` what the engine moves the
records of a task by.  Names are imported at first use, as a worker needs no Arrow.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
