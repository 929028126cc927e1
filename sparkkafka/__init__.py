"""Kafka for Spark in pure Python."""

__version__ = "0.1.0.dev0"
