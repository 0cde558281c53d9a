"""Small pipelines that make their own data: ``python -m examples.streams.word_count``."""
