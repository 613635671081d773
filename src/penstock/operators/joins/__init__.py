"""Joins of two keyed streams, and of a stream with a table that changes slowly."""
