"""Uids: named, derived, and the warning about state that hangs on a derived one."""

from __future__ import annotations

import warnings

import polars as pl
import pytest

import penstock as ps


def numbers(pipeline: ps.Pipeline, uid: str | None = None) -> ps.Stream:
    return pipeline.source(ps.sources.Generator(10, {"id": lambda i: i}), uid=uid)


def uids(pipeline: ps.Pipeline) -> list[str]:
    return [operator.uid for chain in pipeline.graph().chains for operator in chain.operators]


def identity(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def test_a_derived_uid_is_the_nearest_named_operator_and_the_kind():
    p = ps.Pipeline("job")
    numbers(p, "orders").map_batches(identity).map_batches(identity).sink(ps.sinks.Discard(), uid="out")
    assert uids(p) == ["orders", "orders.map_batches", "orders.map_batches-2", "out"]


def test_an_operator_of_another_kind_in_between_changes_no_derived_uid():
    def names(with_watermark: bool) -> list[str]:
        p = ps.Pipeline("job")
        stream = numbers(p, "orders").map_batches(identity)
        if with_watermark:
            stream = stream.with_watermark("id", uid="time").rebalance()
        stream.map_batches(identity, uid="last").sink(ps.sinks.Discard(), uid="out")
        return uids(p)

    assert set(names(True)) - set(names(False)) == {"time"}


def test_a_derived_uid_makes_way_for_a_name_the_user_gave():
    p = ps.Pipeline("job")
    numbers(p, "a").map_batches(identity).sink(ps.sinks.Discard(), uid="a.map_batches")
    assert uids(p) == ["a", "a.map_batches-2", "a.map_batches"]


def test_below_a_union_the_first_stream_gives_the_name():
    p = ps.Pipeline("job")
    numbers(p, "a").union(numbers(p, "b")).map_batches(identity).sink(ps.sinks.Discard(), uid="out")
    assert "a.map_batches" in uids(p)


def test_one_warning_lists_all_unnamed_operators_with_state():
    p = ps.Pipeline("job")
    numbers(p).filter(pl.col("id") > 1).with_watermark("id").sink(ps.sinks.Discard())
    with pytest.warns(ps.UnnamedOperatorWarning) as caught:
        p.graph()
    (warning,) = caught
    text = str(warning.message)
    assert "3 operator(s) keep state but have no uid" in text
    for line in ("source(Generator) (test_uids.py:", "with_watermark (test_uids.py:", "sink(Discard) (test_uids.py:"):
        assert line in text
    assert "filter (" not in text
    assert warning.filename == __file__


def test_the_warning_comes_once_per_pipeline_and_not_if_all_are_named():
    p = ps.Pipeline("job")
    numbers(p).sink(ps.sinks.Discard(), uid="out")
    with pytest.warns(ps.UnnamedOperatorWarning):
        p.graph()
    named = ps.Pipeline("job")
    numbers(named, "in").filter(pl.col("id") > 1).sink(ps.sinks.Discard(), uid="out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.graph()
        named.graph()


def test_a_uid_given_twice_is_an_error_that_names_both_operators():
    p = ps.Pipeline("job")
    numbers(p, "x").sink(ps.sinks.Discard(), uid="x")
    with pytest.raises(ps.PipelineError) as error:
        p.graph()
    assert "the uid 'x' was given to two operators: source(Generator) 'x' (test_uids.py:" in str(error.value)
    assert "and sink(Discard) 'x' (test_uids.py:" in str(error.value)


@pytest.mark.parametrize("uid", ["", "with space", "../up", "a/b", ".hidden", "x" * 101, 7])
def test_a_uid_that_cannot_be_part_of_a_file_name_is_refused(uid: str):
    with pytest.raises(ps.PipelineError, match="is no usable name"):
        numbers(ps.Pipeline("job"), uid)
