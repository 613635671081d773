"""The queries of Nexmark on Spark give what DuckDB gives for the same SQL over the same events, row by row."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.bench.nexmark.catalogue import QUERIES
from penstock.bench.nexmark.checking import difference
from penstock.bench.nexmark.events import Nexmark
from penstock.bench.nexmark.site import Site

FAST = Nexmark(40_000, per_second=500, begin="2015-07-15T23:59:30")
"""Several windows, and a midnight."""
SLOW = Nexmark(40_000, per_second=0.4)
"""More than a day, so that all times of day occur."""
EVENTS = dict.fromkeys(QUERIES, FAST) | dict.fromkeys(["q10", "q14", "q15", "q16", "q17"], SLOW)


def results(query: str, events: Nexmark) -> Any:
    pipeline = ps.Pipeline(query, parallelism=2)
    sink = ps.sinks.Collect()
    QUERIES[query].write(Site(pipeline, events)).sink(sink, uid="out")
    pipeline.run()
    return sink.result()


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_duckdb_gives(spark: Any, query: str) -> None:
    found = results(query, EVENTS[query])
    assert found.num_rows
    assert difference(query, found, EVENTS[query]) is None
