"""The template of a connector's project: ``headrace connect new`` writes it."""

from __future__ import annotations

from headrace.connect.plugins.template.writing import write_project

__all__ = ["write_project"]
