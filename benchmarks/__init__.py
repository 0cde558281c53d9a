"""Measurements of Headrace's speed: ``make bench``."""
