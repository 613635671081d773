"""Operators: what happens to batches inside a chain."""
