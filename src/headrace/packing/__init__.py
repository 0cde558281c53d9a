"""Packs Python, Headrace and a user's file into one archive that runs where only Java is.

``headrace pack`` is the command; Spark unpacks the archive on each worker as ``environment`` and
starts ``environment/bin/python``.
"""

from headrace.packing.archive import (
    Archive,
    Contents,
    check,
    contents_of,
    platform_of,
    write_archive,
)
from headrace.packing.distributions import SITE, Distributions

__all__ = [
    "SITE",
    "Archive",
    "Contents",
    "Distributions",
    "check",
    "contents_of",
    "platform_of",
    "write_archive",
]
