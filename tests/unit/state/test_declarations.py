"""What a declaration of state refuses."""

from __future__ import annotations

import pytest

import penstock as ps


def test_an_option_that_there_is_not_is_refused_instead_of_ignored() -> None:
    with pytest.raises(TypeError, match="a state has no option 'tll': there are ttl, renamed, migrate, pickle"):
        ps.value(int, tll="1h")  # type: ignore[call-arg]
