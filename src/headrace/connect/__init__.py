"""Connect: sources and sinks, and the workers that run them."""

__all__: list[str] = []
