"""What can be wrong with the types and values of states."""

from __future__ import annotations


class UnsupportedType(TypeError):
    """A declared type that cannot be stored."""


class UnstorableValue(ValueError):
    """A value that is not of the declared type, or out of the type's range."""
