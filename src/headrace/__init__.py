"""Exactly-once stream processing in Python over RocketMQ topics, run by Spark."""
