"""Every way to write a pipeline that cannot run, and what the user is told."""

from __future__ import annotations

import threading

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import penstock as ps


class Table:
    """A source of any schema, for pipelines that are never run."""

    bounded = True

    def __init__(self, **types: pa.DataType):
        self.schema = pa.schema(list(types.items()))

    def operator(self):
        raise NotImplementedError


class Picky(ps.sinks.Discard):
    def check(self, schema: pa.Schema) -> None:
        if "id" not in schema.names:
            raise ValueError("the table wants a column 'id'")


@pytest.fixture
def pipeline() -> ps.Pipeline:
    return ps.Pipeline("job")


@pytest.fixture
def orders(pipeline: ps.Pipeline) -> ps.Stream:
    source = Table(
        user=pa.string(), amount=pa.int64(), score=pa.float64(), tags=pa.list_(pa.string()), ts=pa.timestamp("us")
    )
    return pipeline.source(source, uid="orders")


def refused(write) -> str:
    with pytest.raises(ps.PipelineError) as error:
        write()
    return str(error.value)


# ---- the pipeline as a whole ----
def test_a_pipeline_needs_a_source(pipeline):
    assert refused(pipeline.graph) == "pipeline 'job' has no source: begin with stream = pipeline.source(...)"


def test_a_pipeline_needs_a_sink(pipeline, orders):
    assert "pipeline 'job' has no sink, so nothing of what it computes would be kept: end a stream with" in refused(
        pipeline.graph
    )


def test_a_stream_that_nobody_consumes_is_named(pipeline, orders):
    orders.sink(ps.sinks.Discard(), uid="out")
    orders.filter(pl.col("amount") > 1, uid="forgotten")
    message = refused(pipeline.graph)
    assert "nobody consumes the output of filter 'forgotten' (test_pipeline_errors.py:" in message
    assert "End it with .sink(...), or remove it" in message


def test_a_key_that_leads_nowhere_is_a_stream_without_consumer(pipeline, orders):
    orders.key_by("user")
    pipeline.source(Table(id=pa.int64()), uid="other").sink(ps.sinks.Discard(), uid="out")
    assert "nobody consumes the output of source(Table) 'orders'" in refused(pipeline.graph)


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, "2"])
def test_an_operators_parallelism_is_a_positive_number(orders, parallelism):
    message = refused(lambda: orders.filter(pl.col("amount") > 1, parallelism=parallelism))
    assert "filter (test_pipeline_errors.py:" in message
    assert f"parallelism={parallelism!r} must be a whole number of at least 1" in message


# ---- sources and sinks ----
@pytest.mark.parametrize("wrong", ["orders.parquet", ps.sources.Generator, None])
def test_what_is_no_source_is_refused(pipeline, wrong):
    assert "is no source: pass an object such as ps.sources.Generator(...)" in refused(lambda: pipeline.source(wrong))


@pytest.mark.parametrize("wrong", ["out.parquet", ps.sinks.Discard, None])
def test_what_is_no_sink_is_refused(orders, wrong):
    assert "is no sink: pass an object such as ps.sinks.Files(...)" in refused(lambda: orders.sink(wrong))


def test_a_sink_that_does_not_like_the_schema_says_so_under_its_name(orders):
    message = refused(lambda: orders.sink(Picky(), uid="table"))
    assert message.startswith("sink(Picky) 'table' (test_pipeline_errors.py:")
    assert message.endswith("the table wants a column 'id'")


@pytest.mark.parametrize(
    "data_type",
    [pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.uuid()],
    ids=str,
)
def test_a_source_whose_batches_are_not_self_contained_is_refused(pipeline, data_type):
    message = refused(lambda: pipeline.source(Table(kind=data_type)))
    assert (
        f"column 'kind' has type {data_type}, which a stream cannot carry: convert it to a plain Arrow type" in message
    )


def test_a_source_without_columns_is_refused(pipeline):
    assert "a stream needs at least one column" in refused(lambda: pipeline.source(Table()))


def test_column_names_are_unique(pipeline):
    source = Table()
    source.schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.string())])
    assert "column names must be unique, but 'a' appear(s) more than once" in refused(lambda: pipeline.source(source))


# ---- expressions ----
def test_an_unknown_column_names_the_operator_the_closest_match_and_what_there_is(orders):
    message = refused(lambda: orders.filter(pl.col("amout") > 1, uid="big"))
    assert message.startswith("filter 'big' (test_pipeline_errors.py:")
    assert message.endswith(
        "there is no column 'amout'; did you mean 'amount'? Available: 'user', 'amount', 'score', 'tags', 'ts'"
    )


def test_an_unknown_column_without_a_close_match_lists_what_there_is(orders):
    assert "there is no column 'zzz'. Available: 'user'" in refused(lambda: orders.select("zzz"))


def test_columns_dropped_by_a_select_are_unknown_afterwards(orders):
    assert "there is no column 'amount'. Available: 'user'" in refused(
        lambda: orders.select("user").with_columns(pl.col("amount") + 1)
    )


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("amount") > pl.col("amount").mean(),
        pl.col("amount").shift() > 1,
        (pl.col("amount").sum().over("user") + 1) > 2,
        pl.col("amount").is_duplicated(),
        pl.col("amount").cum_sum() > 3,
        pl.len() > 3,
        pl.col("amount").rank() < 3,
        cs.integer().max() > 3,
        pl.all_horizontal(cs.numeric() > cs.numeric().mean()),
    ],
    ids=str,
)
def test_an_expression_that_looks_at_other_rows_is_refused(orders, expression):
    message = refused(lambda: orders.filter(expression))
    assert "looks at more than its own row, so its result would depend on how the stream is cut into batches" in message


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("amount").is_in([1, 2]),
        pl.col("amount").is_in(pl.Series([1, 2])),
        pl.col("tags").list.len() > 0,
        pl.col("tags").list.eval(pl.element().str.len_chars()).list.sum() > 1,
        pl.when(pl.col("amount") > 1).then(pl.col("score")).otherwise(0.0) > 1,
        pl.col("ts").dt.hour() > 3,
        pl.col("user").replace({"a": "b"}) == "b",
        pl.lit(True),
        pl.all_horizontal(cs.numeric() > 0),
    ],
    ids=str,
)
def test_an_expression_of_one_row_is_accepted(orders, expression):
    assert orders.filter(expression).schema == orders.schema


def test_a_predicate_must_be_a_condition(orders):
    message = refused(lambda: orders.filter(pl.col("amount")))
    assert "Polars refuses it: filter predicate must be of type `Boolean`, got `Int64`" in message
    assert "The input has 'user': string, 'amount': int64" in message


def test_expressions_are_expected_not_functions(orders):
    assert "takes Polars expressions, not functions: write pl.col(...) ..., or use map_batches(" in refused(
        lambda: orders.filter(lambda row: row["amount"] > 1)
    )


def test_python_functions_belong_in_map_batches_or_map_not_in_expressions(orders):
    message = refused(lambda: orders.filter(pl.col("amount").map_batches(lambda column: column > 1)))
    assert "a Python function inside an expression (map_elements, map_batches)" in message
    assert "or use stream.map_batches(...) or stream.map(...)" in message


def test_expressions_are_expected_not_series(orders):
    assert "takes Polars expressions, not Series: write pl.col(...) or pl.lit(...)" in refused(
        lambda: orders.with_columns(n=pl.Series([1, 2]))
    )


@pytest.mark.parametrize("method", ["filter", "select", "with_columns"])
def test_an_expression_operator_without_expressions_is_refused(orders, method):
    assert f"needs at least one Polars expression, for example {method}(" in refused(getattr(orders, method))


def test_a_select_of_constants_alone_would_give_one_row_per_batch(orders):
    assert "all its expressions are constants" in refused(lambda: orders.select(one=1))


def test_two_results_of_one_name_are_refused(orders):
    assert "Polars refuses it" in refused(lambda: orders.select("user", pl.col("amount").alias("user")))


# ---- functions ----
@pytest.mark.parametrize("method", ["map", "flat_map"])
def test_a_row_function_must_declare_what_it_returns_and_the_error_shows_how(orders, method):
    def double(row):
        return row

    message = refused(lambda: getattr(orders, method)(double))
    assert message.startswith(f"{method}(double) (test_pipeline_errors.py:")
    assert 'what the function returns must be declared, for example returns={"user": str, "total": int}' in message


@pytest.mark.parametrize("method", ["map", "flat_map", "map_batches"])
def test_a_function_is_expected(orders, method):
    assert "takes a function, not Expr" in refused(
        lambda: getattr(orders, method)(pl.col("amount"), returns={"a": int})
    )


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (
            {"total": "int"},
            "column 'total': 'int' is no type that a column can have; use a Python type (bool, int, float",
        ),
        ({"total": dict}, "is no type that a column can have"),
        ({"total": pl.List}, "is no type that a column can have"),
        ({"total": pl.Object}, "column 'total' has Polars type Object, which a stream cannot carry"),
        ({"total": pl.List(pl.Object)}, "which a stream cannot carry: cast it to another"),
        ({}, "a stream needs at least one column"),
        (["total"], "is list, not a mapping of column names to types"),
        (pa.schema([("kind", pa.uuid())]), "which a stream cannot carry"),
    ],
    ids=repr,
)
def test_a_declaration_that_makes_no_sense_is_refused(orders, returns, message):
    assert message in refused(lambda: orders.map(dict, returns=returns))


def test_a_decimal_needs_precision_and_scale(orders):
    from decimal import Decimal

    assert "a Decimal needs its precision and scale, for example pyarrow.decimal128(18, 2)" in refused(
        lambda: orders.map(dict, returns={"price": Decimal})
    )


def test_a_function_that_captures_what_cannot_be_copied_is_named_with_the_variable(pipeline, orders):
    lock = threading.Lock()

    def guarded(frame: pl.DataFrame) -> pl.DataFrame:
        with lock:
            return frame

    orders.map_batches(guarded, uid="guarded").sink(ps.sinks.Discard(), uid="out")
    message = refused(pipeline.graph)
    assert message.startswith("map_batches(guarded) 'guarded' (test_pipeline_errors.py:")
    assert "cannot be sent to the workers" in message
    assert "variable 'lock' is a _thread.lock (TypeError: cannot pickle '_thread.lock' object)" in message


def test_what_cannot_be_copied_is_found_deep_inside_an_object(pipeline, orders):
    class Lookup:
        def __init__(self):
            self.cache = {"guard": threading.Lock()}

        def fill(self, frame: pl.DataFrame) -> pl.DataFrame:
            return frame

    orders.map_batches(Lookup().fill).sink(ps.sinks.Discard(), uid="out")
    assert "attribute 'cache' -> item 'guard' is a _thread.lock" in refused(pipeline.graph)


# ---- keys, time, unions ----
def test_a_missing_key_column_is_named(orders):
    assert "key_by (test_pipeline_errors.py:" in refused(lambda: orders.key_by("usr"))
    assert "there is no column 'usr'; did you mean 'user'?" in refused(lambda: orders.key_by("usr"))


def test_a_nested_key_is_refused(orders):
    message = refused(lambda: orders.key_by("tags"))
    assert "column 'tags' has type list<" in message
    assert "which cannot be a key: use numbers, strings" in message


def test_a_float_can_be_a_key(orders):
    assert orders.key_by("score", "user").key == ("score", "user")


def test_a_key_is_made_of_column_names(orders):
    assert "takes column names, not Expr: compute the key with with_columns(...) first" in refused(
        lambda: orders.key_by(pl.col("user"))
    )
    assert 'needs at least one column, for example key_by("user")' in refused(orders.key_by)
    assert "names a column twice: 'user', 'user'" in refused(lambda: orders.key_by("user", "user"))


def test_event_time_comes_from_a_column_of_times(orders):
    assert "column 'user' has type string, which is no time: use a timestamp" in refused(
        lambda: orders.with_watermark("user")
    )
    assert "there is no column 'tss'; did you mean 'ts'?" in refused(lambda: orders.with_watermark("tss"))


def test_a_delay_that_is_no_duration_is_refused(orders):
    assert "with_watermark 'time' (test_pipeline_errors.py:" in refused(
        lambda: orders.with_watermark("ts", delay="late", uid="time")
    )


def test_a_union_needs_another_stream(orders):
    assert "union (test_pipeline_errors.py:" in refused(orders.union)
    assert "takes streams, not list" in refused(lambda: orders.union([orders]))


def test_streams_of_a_union_have_one_schema_and_the_error_says_where_they_differ(pipeline, orders):
    other = pipeline.source(Table(user=pa.string(), amount=pa.int32(), extra=pa.int64()), uid="other")
    message = refused(lambda: orders.select("user", "amount").union(other))
    assert "the schema differs from that of source(Table) 'other'" in message
    assert "'amount' is int64 here and int32 there; 'extra' is missing here and int64 there" in message
    assert "Bring them to one schema with select(...)" in message


def test_streams_of_a_union_have_one_order_of_columns(orders):
    assert "the order is 'user', 'amount' here and 'amount', 'user' there" in refused(
        lambda: orders.select("user", "amount").union(orders.select("amount", "user"))
    )


def test_streams_of_two_pipelines_do_not_mix(orders):
    other = ps.Pipeline("second").source(Table(user=pa.string()))
    assert "cannot unite streams of two pipelines, 'job' and 'second'" in refused(lambda: orders.union(other))


# ---- methods that are not there ----
def test_keyed_operations_on_an_unkeyed_stream_ask_for_a_key(orders):
    with pytest.raises(AttributeError, match=r"this stream has no key: write stream.key_by\(...\).reduce\(...\)"):
        _ = orders.reduce


def test_unkeyed_operations_on_a_keyed_stream_say_where_they_belong(orders):
    with pytest.raises(AttributeError, match=r"filter needs no key: write stream.filter"):
        orders.key_by("user").filter(pl.col("amount") > 1)


def test_an_unknown_method_lists_those_that_exist(orders):
    with pytest.raises(AttributeError, match=r"a Stream has no 'groupby'; it has .*key_by"):
        orders.groupby("user")


def test_a_stream_cannot_be_iterated_while_the_pipeline_is_written(orders):
    with pytest.raises(TypeError, match=r"end it with .sink"):
        list(orders)
