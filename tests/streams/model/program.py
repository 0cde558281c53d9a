"""The plans as a program for ``headrace run``."""

from __future__ import annotations

from tests.streams.model.jobs import all_plans, merged

topology = merged(all_plans(), "model-killed")
