"""Damage in the files of a store: finding it, telling it, and fencing it off."""

__all__: list[str] = []
