"""process and reduce in the plan: edges by key, state, and what is refused."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.graph.job import Partitioning


class Totals(ps.KeyedFunction):
    total = ps.value(int, default=0)

    def process(self, row, ctx):
        self.total.value += row.amount
        ctx.emit(user=row.user, total=self.total.value)


class Hiding(ps.KeyedFunction):
    close = ps.value(int)


RETURNS = {"user": str, "total": int}


def orders(pipeline: ps.Pipeline) -> ps.Stream:
    columns = {"user": lambda i: pa.array([f"u{n % 3}" for n in i], pa.string()), "amount": lambda i: i}
    return pipeline.source(ps.sources.Generator(10, columns), uid="orders")


def refused(write) -> str:
    with pytest.raises(ps.PipelineError) as error:
        write()
    return str(error.value)


@pytest.mark.parametrize("function", [Totals, Totals()], ids=["class", "object"])
def test_process_begins_a_chain_behind_an_edge_by_key(function):
    p = ps.Pipeline("job")
    totals = orders(p).key_by("user").process(function, returns=RETURNS, uid="totals")
    totals.filter(pl.col("total") > 3).sink(ps.sinks.Discard(), uid="out")
    graph = p.graph()
    (edge,) = graph.edges
    assert (edge.partitioning, edge.key) == (Partitioning.HASH, ("user",))
    head, *rest = graph.chain(edge.target).operators
    assert (head.uid, head.name, head.stateful) == ("totals", "process(Totals)", True)
    assert head.schema == pa.schema([("user", pa.string()), ("total", pa.int64())])
    assert [operator.uid for operator in rest] == ["totals.filter", "out"]


def test_a_plain_function_keeps_one_declared_state():
    p = ps.Pipeline("job")
    keyed = orders(p).key_by("user")
    state = ps.value(int, default=0)
    keyed.process(lambda row, total, ctx: None, state=state, returns=RETURNS).sink(ps.sinks.Discard())
    with pytest.warns(ps.UnnamedOperatorWarning, match="process"):
        names = [operator.name for chain in p.graph().chains for operator in chain.operators]
    assert names == ["source(Generator)", "process", "sink(Discard)"]


def test_the_parallelism_of_keyed_state_is_bounded_by_the_key_groups():
    p = ps.Pipeline("job", key_groups=4)
    orders(p).key_by("user").process(Totals, returns=RETURNS, uid="totals", parallelism=5).sink(ps.sinks.Discard())
    message = refused(p.graph)
    assert message.startswith("process(Totals) 'totals' (test_keyed_nodes.py:")
    assert "its parallelism 5 exceeds the 4 key groups" in message


def test_more_subtasks_than_key_groups_are_fine_without_a_key():
    p = ps.Pipeline("job", key_groups=1, parallelism=3)
    orders(p).sink(ps.sinks.Discard(), uid="out")
    assert p.graph().slots == 3


def plain(row, state, ctx) -> None:
    """Keeps nothing."""


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda k: k.process(Totals), "process(Totals) (test_keyed_nodes.py"),
        (lambda k: k.process(Totals), "what the function returns must be declared, for example returns="),
        (lambda k: k.process(Totals, returns=RETURNS, state=ps.value(int)), "as an attribute of the class"),
        (lambda k: k.process(plain, returns=RETURNS), "a plain function needs the state it keeps"),
        (lambda k: k.process(plain, returns=RETURNS, state=int), "for example state=ps.value(int, default=0)"),
        (lambda k: k.process(dict, returns=RETURNS), "derive the class from ps.KeyedFunction"),
        (lambda k: k.process(7, returns=RETURNS), "or a plain function, not 7"),
        (lambda k: k.process(Hiding, returns=RETURNS), "the state 'close' hides the method of that name"),
    ],
)
def test_a_process_that_cannot_run_is_refused(write, message):
    assert message in refused(lambda: write(orders(ps.Pipeline("job")).key_by("user")))


def test_reduce_gives_the_key_and_the_named_aggregates():
    p = ps.Pipeline("job")
    stream = orders(p).key_by("user").reduce(n=ps.count(), total=ps.sum("amount"), high=ps.max("amount"), uid="sums")
    stream.sink(ps.sinks.Discard(), uid="out")
    assert [(field.name, str(field.type)) for field in stream.schema] == [
        ("user", "string"),
        ("n", "int64"),
        ("total", "int64"),
        ("high", "int64"),
    ]
    spec = p.graph().chains[1].operators[0]
    assert (spec.name, spec.stateful, spec.schema) == ("reduce", True, stream.schema)


def test_reduce_with_a_function_of_two_rows_keeps_the_columns():
    p = ps.Pipeline("job")

    def larger(best, row):
        return row if row.amount > best.amount else best

    stream = orders(p).key_by("user").reduce(larger, uid="best")
    stream.sink(ps.sinks.Discard(), uid="out")
    assert stream.schema == orders(ps.Pipeline("other")).schema
    assert p.graph().chains[1].operators[0].name == "reduce(larger)"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda k: k.reduce(), "reduce needs at least one aggregate: reduce(n=ps.count()"),
        (lambda k: k.reduce(total=ps.sum("amout")), "sum(amout): there is no column 'amout'; did you mean 'amount'?"),
        (lambda k: k.reduce(total=ps.sum("user")), "a column of type string has no sum"),
        (lambda k: k.reduce(user=ps.count()), "the aggregate 'user' has the name of another column"),
        (lambda k: k.reduce(n=ps.count(where="large")), "count(where=large): there is no column 'large'"),
        (lambda k: k.reduce(total="amount"), "total='amount' is no aggregate: use ps.count(), ps.sum(column)"),
        (lambda k: k.reduce(ps.count()), "an aggregate needs a name for its column: reduce(name=count())"),
        (lambda k: k.reduce("amount"), "takes a function of two rows, not str 'amount'"),
        (lambda k: k.reduce(plain, n=ps.count()), "either a function of two rows or named aggregates, not both"),
    ],
)
def test_a_reduce_that_cannot_run_is_refused(write, message):
    text = refused(lambda: write(orders(ps.Pipeline("job")).key_by("user")))
    assert text.startswith("reduce")
    assert message in text
