"""`import penstock` is cheap, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock

HEAVY = {"numba", "numpy", "pandas", "polars", "py4j", "pyarrow", "pyspark"}


def loaded_after(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after running the code."""
    program = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    )


def test_importing_penstock_loads_nothing_heavy():
    assert loaded_after("import penstock") & HEAVY == set()


def test_building_a_pipeline_without_expressions_loads_neither_polars_nor_numba_nor_pyspark():
    code = (
        "import penstock as ps\n"
        "p = ps.Pipeline('job')\n"
        "p.source(ps.sources.Generator(10, {'id': lambda i: i}), uid='in').sink(ps.sinks.Discard(), uid='out')\n"
        "p.explain()"
    )
    assert loaded_after(code) & {"polars", "numba", "pyspark"} == set()


def test_the_operators_of_expressions_load_no_polars_before_they_open():
    assert "polars" not in loaded_after("import penstock.operators.expressions, penstock.operators.batches")


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_exists(name: str):
    assert getattr(penstock, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Pipelines'"):
        _ = penstock.Pipelines
