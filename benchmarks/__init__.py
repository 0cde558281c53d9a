"""Measurements of Headrace's speed: ``make bench``, ``make bench-peers``."""
