"""A broker's part in replication: primary or follower, promotion, and rebuilding what a log lacks."""

__all__: list[str] = []
