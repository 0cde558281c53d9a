"""The port: connections, what they speak, and limits that hold under attack."""

__all__: list[str] = []
