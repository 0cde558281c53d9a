"""The rule of the commit log, as :mod:`headrace.protocol.commit_log` has it."""

from __future__ import annotations

from headrace.protocol.commit_log import CommitLog, Verdict, record_key

__all__ = ["CommitLog", "Verdict", "record_key"]
