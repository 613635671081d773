"""Expressions as SQL text give what DuckDB gives for the same text, nulls included; what they would not is refused."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.operators.base import Emitted

SCHEMA = pa.schema(
    {
        "a": pa.int64(),
        "b": pa.float64(),
        "s": pa.string(),
        "t": pa.bool_(),
        "ts": pa.timestamp("ms"),
        "user": pa.string(),
    }
)


class Table:
    bounded = True
    schema = SCHEMA

    def operator(self):
        raise NotImplementedError


def stream() -> ps.Stream:
    return ps.Pipeline("job").source(Table(), uid="in")


def run(written: ps.Stream, batch: pa.RecordBatch) -> pa.Table:
    """What the stream's one operator makes of a batch."""
    (route,) = written._routes
    operator: Any = route.node.factory()
    operator.open(None)
    out = Emitted()
    operator.process(batch, 0, out)
    return pa.Table.from_batches(out.batches, written.schema)


def answer(query: str, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("records", pa.Table.from_batches([batch]))
        return connection.execute(f"select {query}").fetchall()


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def comparable(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Floats to 12 digits, and NaN equal to itself; numbers of any type by their value."""
    return [tuple(_comparable(value) for value in row) for row in found]


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.12g}")
    return value


# ---- random expressions over random rows ----
def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


TIMES = st.integers(-(10**11), 10**12).map(lambda ms: dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms))
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "a": nullable(st.integers(-20, 20)),
            "b": nullable(st.sampled_from([-1.5, -0.25, 0.0, 0.5, 2.0, 7.75])),
            "s": nullable(st.sampled_from(["", "a", "abc", "ABC", "x/y/z", "a%b", "a_b", "Ünï", "it's"])),
            "t": nullable(st.booleans()),
            "ts": nullable(TIMES),
            "user": nullable(st.sampled_from(["ann", "bob"])),
        }
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip

NUMBERS = st.recursive(
    st.sampled_from(["a", "b", "2", "-3", "0.5", "null::bigint", "length(s)", "extract(hour from ts)",
                     "extract(year from ts)", "extract(dow from ts)", "extract(epoch from ts)"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} / 4)".format, inner),
        st.builds("(cast({} as bigint) % 7)".format, st.sampled_from(["a", "length(s)"])),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("nullif({}, {})".format, inner, inner),
        st.builds("abs({})".format, inner),
        st.builds("case when {} > {} then {} else {} end".format, inner, inner, inner, inner),
        st.builds("cast({} as double)".format, inner),
    ),
    max_leaves=4,
)  # fmt: skip

TEXTS = st.recursive(
    st.sampled_from(["s", "'abc'", "''", "null::varchar", '"user"', "'it''s'", "cast(a as varchar)",
                     "strftime(ts, '%Y-%m-%d %H')"]),
    lambda inner: st.one_of(
        st.builds("({} || {})".format, inner, inner),
        st.builds("{}({})".format, st.sampled_from(["upper", "lower", "trim", "reverse"]), inner),
        st.builds("concat({}, {})".format, inner, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("substr({}, {}, {})".format, inner, st.integers(1, 4), st.integers(0, 3)),
        st.builds("split_part({}, '/', {})".format, inner, st.integers(1, 4)),
        st.builds("replace({}, 'a', 'zz')".format, inner),
        st.builds("case {} when 'abc' then {} when 'a' then 'one' end".format, inner, inner),
    ),
    max_leaves=3,
)  # fmt: skip

CONDITIONS = st.recursive(
    st.one_of(
        st.just("t"),
        st.just("null::boolean"),
        st.builds("({} {} {})".format, NUMBERS, st.sampled_from(["<", "<=", "=", "<>", ">", ">="]), NUMBERS),
        st.builds("({} {} {})".format, TEXTS, st.sampled_from(["<", "=", "<>", ">="]), TEXTS),
        st.builds("({} {}like '{}')".format, TEXTS, st.sampled_from(["", "not "]),
                  st.sampled_from(["a%", "%b%", "_bc", "%"])),
        st.builds("({} is {}null)".format, st.one_of(NUMBERS, TEXTS), st.sampled_from(["", "not "])),
        st.builds("(a {}in ({}))".format, st.sampled_from(["", "not "]), st.sampled_from(["1, 2, 3", "1, null", "-5"])),
        st.builds("(a {}between {} and 5)".format, st.sampled_from(["", "not "]), NUMBERS),
        st.builds("(a is {}distinct from {})".format, st.sampled_from(["", "not "]), NUMBERS),
        st.just("(ts > timestamp '2000-01-01 00:00:00')"),
        st.just("(s ~ '^[a-c]+$')"),
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.one_of(NUMBERS.map(lambda text: f"cast({text} as double)"), TEXTS, CONDITIONS))
def test_a_selected_column_is_what_duckdb_selects(records, text):
    batch = pa.RecordBatch.from_pylist(records, SCHEMA)
    found = run(stream().select_sql("a", f"{text} as result"), batch)
    assert comparable(rows(found)) == comparable(answer(f"a, {text} as result from records", batch))


@settings(max_examples=150, deadline=None)
@given(RECORDS, CONDITIONS)
def test_a_filter_keeps_the_rows_that_duckdb_keeps(records, text):
    batch = pa.RecordBatch.from_pylist(records, SCHEMA)
    found = run(stream().filter_sql(text), batch)
    assert comparable(rows(found)) == comparable(answer(f"* from records where {text}", batch))


# ---- forms ----
BATCH = pa.RecordBatch.from_pylist([{"a": 1, "b": 0.5, "s": "abc", "t": True, "user": "ann"}, {"user": "bob"}], SCHEMA)


def test_the_schema_is_known_while_the_pipeline_is_written():
    found = stream().select_sql("user", "a * 2 as double", "cast(b as real) as small", text="upper(s)").schema
    assert found == pa.schema({"user": pa.string(), "double": pa.int64(), "small": pa.float32(), "text": pa.string()})


def test_a_column_whose_name_is_a_word_of_sql_is_meant_as_a_column():
    assert rows(run(stream().select_sql("user"), BATCH)) == [("ann",), ("bob",)]


def test_a_star_selects_all_columns():
    assert stream().select_sql("*", "a + 1 as next").columns == [*SCHEMA.names, "next"]


def test_columns_are_added_and_replaced():
    found = run(stream().with_columns_sql("a + 1 as a", "s || 'x' as x"), BATCH)
    assert found.column_names == [*SCHEMA.names, "x"]
    assert found.column("a").to_pylist() == [2, None]
    assert found.column("x").to_pylist() == ["abcx", None]


def test_neighbouring_sql_and_polars_expressions_become_one_operator():
    pipeline = ps.Pipeline("job")
    source = pipeline.source(Table(), uid="in")
    source.filter_sql("a > 0").select("a", "s").with_columns_sql("a + 1 as b").sink(ps.sinks.Discard(), uid="out")
    assert [len(chain.operators) for chain in pipeline.graph().chains] == [3]


def test_words_in_constants_and_comments_have_no_meaning():
    found = run(stream().select_sql("s || ' now() is true ' as x -- strpos(s)"), BATCH)
    assert found.column("x").to_pylist() == ["abc now() is true ", None]


# ---- what is refused ----
def refused(write) -> str:
    with pytest.raises(ps.PipelineError) as error:
        write(stream())
    return str(error.value)


@pytest.mark.parametrize(
    ("write", "operator", "why"),
    [
        (lambda s: s.filter_sql("a >"), "filter_sql('a >')", "unable to parse 'a >'"),
        (lambda s: s.filter_sql("c > 1"), "filter_sql('c > 1')", "there is no column 'c'"),
        (lambda s: s.filter_sql("a", uid="f"), "filter_sql('a') 'f'", "Boolean"),
        (lambda s: s.filter_sql("a = 'x'"), "filter_sql(\"a = 'x'\")", "cannot compare string"),
        (lambda s: s.filter_sql("user = 'ann'"), "filter_sql(\"user = 'ann'\")", 'in double quotes, "user"'),
        (lambda s: s.filter_sql(1), "filter_sql (", "takes SQL text, not int 1"),
        (lambda s: s.filter_sql(), "filter_sql (", "needs at least one SQL expression"),
        (lambda s: s.filter_sql("t is not true"), "filter_sql('t is not true')", "write coalesce("),
        (lambda s: s.filter_sql("strpos(s, 'a') > 0"), "filter_sql(", "strpos does not give null for null"),
        (lambda s: s.filter_sql("ts < now()"), "filter_sql('ts < now()')", "now is another time whenever"),
        (lambda s: s.filter_sql("a > (select 1)"), "filter_sql('a > (select 1)')", ""),
        (lambda s: s.select_sql("a + 1"), "select_sql('a + 1')", 'the result needs a name: write "a + 1 as name"'),
        (lambda s: s.select_sql("sum(a) as n"), "select_sql('sum(a) as n')", "looks at more than its own row"),
        (lambda s: s.select_sql("row_number() over (order by a) as n"), "select_sql(", "looks at more than its own"),
        (lambda s: s.select_sql("lag(a) over (order by ts) as n"), "select_sql(", "looks at more than its own row"),
        (lambda s: s.select_sql("1 as one"), "select_sql (", "all its expressions are constants"),
        (lambda s: s.select_sql("a", "b as a"), "select_sql (", "a"),
        (lambda s: s.select_sql("nonsense(a) as n"), "select_sql('nonsense(a) as n')", "unsupported function"),
        (lambda s: s.with_columns_sql("unnest(a) as n"), "with_columns_sql(", "use flat_map(...)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_the_operator_and_the_text(write, operator, why):
    message = refused(write)
    assert message.startswith(operator), message
    assert why in message
