"""Headrace: broker."""
