"""Headrace: topology."""
