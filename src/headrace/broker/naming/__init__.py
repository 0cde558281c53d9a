"""The name server: other brokers that register here, and registration with other name servers."""

__all__: list[str] = []
