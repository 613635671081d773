"""Every query of Nexmark can be written, and the comparison with DuckDB finds what is wrong."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.bench.nexmark.answers import SQL, answer
from penstock.bench.nexmark.catalogue import QUERIES
from penstock.bench.nexmark.checking import difference
from penstock.bench.nexmark.events import Nexmark
from penstock.bench.nexmark.run import chosen
from penstock.bench.nexmark.site import Site
from penstock.cli import app

EVENTS = Nexmark(5_000, per_second=100)


def test_there_is_an_answer_for_every_query():
    assert list(QUERIES) == list(SQL) == [f"q{number}" for number in range(23)]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_reads_what_it_says_and_names_all_of_its_state(query, recwarn):
    pipeline = ps.Pipeline(query)
    QUERIES[query].write(Site(pipeline, EVENTS)).sink(ps.sinks.Discard(), uid="out")
    sources = {chain.operators[0].uid for chain in pipeline.graph().chains} & {"persons", "auctions", "bids"}
    assert sources == set(QUERIES[query].of)
    assert not [warning for warning in recwarn if issubclass(warning.category, ps.UnnamedOperatorWarning)]
    assert QUERIES[query].what


@pytest.mark.parametrize("whole", [False, True])
def test_a_query_has_the_columns_of_its_answer(whole):
    events = Nexmark(5_000, per_second=100, whole=whole)
    for query in QUERIES.keys() - {"q12"}:
        stream = QUERIES[query].write(Site(ps.Pipeline(query), events))
        assert stream.columns == answer(query, events).column_names, query


def test_the_right_rows_in_any_order_are_right():
    wanted = answer("q1", EVENTS)
    assert difference("q1", wanted.sort_by("price"), EVENTS) is None


def test_a_missing_row_a_row_too_many_and_a_changed_one_are_found():
    wanted = answer("q2", EVENTS)
    assert "1 different rows" in (difference("q2", wanted.slice(1), EVENTS) or "")
    assert "1 different rows" in (difference("q2", pa.concat_tables([wanted, wanted.slice(0, 1)]), EVENTS) or "")
    changed = wanted.set_column(1, "price", [[*wanted["price"].to_pylist()[:-1], 0]])
    assert "2 different rows" in (difference("q2", changed, EVENTS) or "")


def test_other_columns_are_found():
    assert "has the columns" in (
        difference("q2", answer("q2", EVENTS).rename_columns(["auction", "cost"]), EVENTS) or ""
    )


def test_of_a_row_that_was_put_out_again_the_last_counts():
    wanted = answer("q15", EVENTS)
    early = pl.DataFrame(wanted).with_columns(total_bids=pl.lit(1, pl.Int64)).to_arrow().cast(wanted.schema)
    assert difference("q15", pa.concat_tables([early, wanted]), EVENTS) is None
    assert difference("q15", pa.concat_tables([wanted, early]), EVENTS) is not None


def test_windows_of_the_clock_are_compared_by_what_they_hold_together():
    counts = pl.DataFrame(answer("q12", EVENTS)).filter(pl.col("bid_count") > 1)
    rest = pl.DataFrame(answer("q12", EVENTS)).filter(pl.col("bid_count") == 1)
    halves = [counts.with_columns(bid_count=pl.lit(1, pl.Int64)), counts.with_columns(pl.col("bid_count") - 1), rest]
    assert difference("q12", pl.concat(halves).to_arrow(), EVENTS) is None
    assert difference("q12", pl.concat(halves[1:]).to_arrow(), EVENTS) is not None


def test_queries_are_chosen_by_name():
    assert chosen([]) == chosen(["all"]) == list(QUERIES)
    assert chosen(["q5", "q1", "q5"]) == ["q5", "q1"]
    with pytest.raises(ValueError, match="there is no query q23"):
        chosen(["q1", "q23"])


def test_the_command_says_which_queries_there_are():
    result = CliRunner().invoke(app, ["bench", "nexmark", "q99"])
    assert result.exit_code == 2
    assert "q99" in result.output
