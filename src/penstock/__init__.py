"""Penstock: fault-tolerant stateful streaming on PySpark."""

__version__ = "0.1.0"
