"""What tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.store import checkpoints


@pytest.fixture(autouse=True, scope="module")
def committables_in_files() -> Iterator[None]:
    """However few they are, unless a test says otherwise: a file more that can be lost or damaged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "INLINE", 0)
        yield
