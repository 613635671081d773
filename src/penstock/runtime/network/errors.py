"""What can be wrong with bytes that came from elsewhere."""

from __future__ import annotations


class WireError(ValueError):
    """Bytes that are not what they should be, or something that cannot be made into bytes."""
