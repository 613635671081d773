"""A process that loads Arrow without pandas gets pandas when somebody wants it, and Arrow then knows it. Each in a
process of its own: what is loaded stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys
from penstock.spark.without_pandas import without_pandas
with without_pandas():
    import numpy as np
    import pyarrow as pa
    pa.array(np.arange(3))
pa.array(np.arange(3))
pa.array([1, None])
assert "pandas" not in sys.modules
"""

WANTED = {
    "imported": "import pandas; assert pa.array(pandas.Series([1.0, float('nan')])).null_count == 1",
    "a part of it": "from pandas import Series; assert pa.array(Series([1.0, float('nan')])).null_count == 1",
    "by arrow": "assert pa.table({'a': [1]}).to_pandas()['a'].tolist() == [1]",
    "its own": "import pandas, importlib.resources as of; assert of.files('pandas').joinpath('api').is_dir()",
}


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_pandas_is_there_when_somebody_wants_it(wanted: str) -> None:
    run(LOADED + wanted)


def test_where_pandas_is_loaded_already_nothing_changes() -> None:
    run("""
import sys, pandas, pyarrow as pa
before = list(sys.meta_path)
from penstock.spark.without_pandas import without_pandas
with without_pandas():
    assert pa.array(pandas.Series([float("nan")])).null_count == 1
assert sys.meta_path == before
""")
