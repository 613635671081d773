"""Settings that hold for all tests."""

from __future__ import annotations

from hypothesis import settings

# A shared machine makes wall time meaningless, so no example has a deadline; the same examples are run every time.
settings.register_profile("penstock", deadline=None, derandomize=True)
settings.load_profile("penstock")
