"""Headrace: streams."""
