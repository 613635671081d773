"""The examples in the documentation do what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from penstock.api import checkpoints, durations

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_examples_of_the_page_about_pipelines_are_true():
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 10
    assert result.failed == 0


@pytest.mark.parametrize("module", [checkpoints, durations], ids=lambda module: module.__name__)
def test_the_examples_in_the_code_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
