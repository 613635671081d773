"""Aggregates: what can be kept per key or window, as arrays indexed by slot."""
