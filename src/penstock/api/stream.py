"""Streams: what a pipeline's operators are written on.

A stream is an immutable value. Every method returns a new one and leaves the old one as it was, so one stream can be
used many times: each use gets all of its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.api.durations import Duration, seconds
from penstock.graph import nodes
from penstock.graph.job import Partitioning
from penstock.graph.plan import Plan
from penstock.graph.schemas import Returns

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from penstock.api.keyed import KeyedStream
    from penstock.api.windowed import StreamWithLate, WindowedStream
    from penstock.connectors.base import Sink
    from penstock.operators.stream_function import StreamFunction
    from penstock.operators.windows.declare import Trigger, Windows

_KEYED_METHODS = ("reduce", "join", "interval_join", "temporal_join")


class Stream:
    """Records on their way. Made by `Pipeline.source` and by the methods of other streams."""

    def __init__(self, plan: Plan, routes: nodes.Routes) -> None:
        self._plan, self._routes = plan, routes

    @property
    def schema(self) -> pa.Schema:
        """Of the stream's records, known while the pipeline is written."""
        return nodes.schema_of(self._routes)

    @property
    def columns(self) -> list[str]:
        names: list[str] = self.schema.names
        return names

    def filter(self, *predicates: Any, uid: str | None = None, parallelism: int | None = None, **equal: Any) -> Stream:
        """Keeps the rows for which all predicates (Polars expressions) hold: `filter(pl.col("amount") > 100,
        country="fr")`."""
        return self._expressions("filter", predicates, equal, uid, parallelism)

    def select(self, *columns: Any, uid: str | None = None, parallelism: int | None = None, **named: Any) -> Stream:
        """Exactly these columns: names or Polars expressions, `select("user", total=pl.col("price") *
        pl.col("count"))`.

        A column that is itself to be called `uid` or `parallelism` is written with `.alias("uid")`.
        """
        return self._expressions("select", columns, named, uid, parallelism)

    def with_columns(
        self, *columns: Any, uid: str | None = None, parallelism: int | None = None, **named: Any
    ) -> Stream:
        """Adds or replaces columns, as `select` computes them."""
        return self._expressions("with_columns", columns, named, uid, parallelism)

    def filter_sql(self, *predicates: str, uid: str | None = None, parallelism: int | None = None) -> Stream:
        """Keeps the rows for which all predicates, as SQL text, are true: `filter_sql("amount > 100 and name like
        'a%'")`."""
        return self._with(nodes.add_sql(self._plan, self._routes, "filter", predicates, {}, uid, parallelism))

    def select_sql(self, *columns: str, uid: str | None = None, parallelism: int | None = None, **named: str) -> Stream:
        """Exactly these columns, as SQL text: `select_sql("user", "amount * 2 as double")`."""
        return self._with(nodes.add_sql(self._plan, self._routes, "select", columns, named, uid, parallelism))

    def with_columns_sql(
        self, *columns: str, uid: str | None = None, parallelism: int | None = None, **named: str
    ) -> Stream:
        """Adds or replaces columns, as `select_sql` computes them."""
        return self._with(nodes.add_sql(self._plan, self._routes, "with_columns", columns, named, uid, parallelism))

    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        *,
        returns: Returns | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A function of whole batches. Where the stream is cut into batches changes from run to run: the result for a
        row must not depend on its neighbours. Without `returns` the columns stay as they are."""
        return self._with(nodes.add_map_batches(self._plan, self._routes, function, returns, uid, parallelism))

    def map(
        self,
        function: Callable[[dict[str, Any]], Mapping[str, Any]],
        *,
        returns: Returns | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A function from row (a dict) to row: `map(lambda row: {"n": row["n"] + 1}, returns={"n": int})`."""
        return self._with(nodes.add_map(self._plan, self._routes, function, returns, uid, parallelism))

    def flat_map(
        self,
        function: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]],
        *,
        returns: Returns | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A function from row to any number of rows: a list of dicts, or a generator of them."""
        return self._with(nodes.add_flat_map(self._plan, self._routes, function, returns, uid, parallelism))

    def process(
        self,
        function: StreamFunction | type[StreamFunction],
        *,
        returns: Returns | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Calls a `ps.StreamFunction` for every row, with state of its own instance. For state per key write
        `key_by(...).process(...)`."""
        from penstock.graph.stream_functions import add_stream_process

        return self._with(add_stream_process(self._plan, self._routes, function, returns, uid, parallelism))

    def with_watermark(
        self,
        column: str,
        *,
        delay: Duration = 0,
        idle_after: Duration | None = None,
        max_drift: Duration | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Takes event time from a column (a timestamp, a date, or integer milliseconds): time is up to the highest
        value seen, less the `delay` that a record may come late; of several splits of a source, the slowest counts.
        What has had no records for `idle_after` is not waited for. A source that is further ahead than `max_drift` of
        the slowest one that has it too waits for that."""
        try:
            allowed = seconds(delay, "delay")
            idle = None if idle_after is None else seconds(idle_after, "idle_after", positive=True)
            drift = None if max_drift is None else seconds(max_drift, "max_drift", positive=True)
        except ValueError as error:
            raise nodes.site_of("with_watermark", uid).error(str(error)) from None
        return self._with(nodes.add_watermark(self._plan, self._routes, column, allowed, idle, drift, uid, parallelism))

    def key_by(self, *columns: str) -> KeyedStream:
        """Brings all records of a key to one place, where `process` and `reduce` keep state for it."""
        from penstock.api.keyed import KeyedStream  # the two kinds of stream know each other

        return KeyedStream(self._plan, nodes.keyed(self._routes, columns), columns)

    def window(
        self,
        windows: Windows,
        *,
        allowed_lateness: Duration = 0,
        early: Trigger | None = None,
        on: str | None = None,
    ) -> WindowedStream:
        """Cuts all records into windows, without a key; kept in one place:
        `window(ps.tumbling("10s")).aggregate(n=ps.count())`.

        A record later than all its windows by more than `allowed_lateness` goes to the result's `late` stream; within
        it, the window's row is put out again. `early` puts rows out before the window ends: `early=ps.every("1s")`.
        Event time is in the column that `with_watermark` named, or `on` another one."""
        from penstock.api.windowed import windowed

        return windowed(self._plan, self._routes, (), windows, allowed_lateness, early, on)

    def deduplicate(
        self,
        *columns: str,
        within: Duration | None = None,
        on: str | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> StreamWithLate:
        """Lets through the first record of every value of these columns: `deduplicate("id", within="1h")`. Within a
        time, a record is a repetition if one was let through less than that before or after it, by event time (see
        `with_watermark`), or by the clock if the stream has none; without it, values are remembered for ever."""
        from penstock.api.windowed import StreamWithLate
        from penstock.graph.windows import add_deduplicate

        routes = nodes.keyed(self._routes, columns, "deduplicate")
        try:
            length = None if within is None else round(seconds(within, "within", positive=True) * 1_000)
        except ValueError as error:
            raise nodes.site_of("deduplicate", uid).error(str(error)) from None
        results, late = add_deduplicate(self._plan, routes, columns, length, on, uid, parallelism)
        return StreamWithLate(self._plan, results, late)

    def lookup_join(
        self,
        table: Stream,
        *,
        on: str | Sequence[str] | None = None,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: str = "inner",
        suffix: str = "_right",
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Each record with what is known of its key now, in a table that changes slowly and that every subtask keeps:
        `orders.lookup_join(products, on="product", how="left")`. The table is the last row of every key of the other
        stream, which is broadcast. Event time is that of this stream alone."""
        from penstock.graph.joins import JoinInput, add_lookup_join

        site = nodes.site_of("lookup_join", uid)
        if not isinstance(table, Stream):
            raise site.error(f"takes a stream without a key, not {type(table).__name__}: name the key with on=")
        if (on is None) == (left_on is None and right_on is None) or (left_on is None) != (right_on is None):
            raise site.error('name the key: either on="id", or both left_on="product" and right_on="id"')
        keys = [_names(own if on is None else on) for own in (left_on, right_on)]
        facts, other = JoinInput(self._plan, self._routes, keys[0]), JoinInput(table._plan, table._routes, keys[1])
        return self._with(add_lookup_join(facts, other, how, suffix, uid, parallelism))

    def rebalance(self) -> Stream:
        """Spreads the records evenly over the subtasks of the next operator, batch by batch."""
        return self._with(nodes.rerouted(self._routes, Partitioning.REBALANCE))

    def broadcast(self) -> Stream:
        """Gives every record to every subtask of the next operator."""
        return self._with(nodes.rerouted(self._routes, Partitioning.BROADCAST))

    def union(self, *others: Stream) -> Stream:
        """The records of all these streams, in no particular order between them. All must have the same columns and
        types."""
        for other in others:
            if not isinstance(other, Stream):
                raise nodes.site_of("union").error(f"takes streams, not {type(other).__name__}")
        return self._with(nodes.united(self._plan, self._routes, [(other._plan, other._routes) for other in others]))

    def sink(self, sink: Sink, *, uid: str | None = None, parallelism: int | None = None) -> None:
        """Ends the stream in a sink."""
        nodes.add_sink(self._plan, self._routes, sink, uid, parallelism)

    def _expressions(
        self,
        kind: nodes.ExpressionKind,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        uid: str | None,
        parallelism: int | None,
    ) -> Stream:
        return self._with(nodes.add_expressions(self._plan, self._routes, kind, positional, named, uid, parallelism))

    def _with(self, routes: nodes.Routes) -> Stream:
        return Stream(self._plan, routes)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"<{type(self).__name__} of {' and '.join(str(route.node) for route in self._routes)}: {fields}>"

    def __iter__(self) -> Iterable[Any]:
        raise TypeError(
            "a stream cannot be iterated while the pipeline is written: end it with .sink(ps.sinks.Collect()) and run "
            "the pipeline"
        )

    if not TYPE_CHECKING:  # type checkers know what exists; people who guess get an answer

        def __getattr__(self, name: str) -> Any:
            if name in _KEYED_METHODS:
                raise AttributeError(
                    f"{name} keeps state per key, and this stream has no key: write stream.key_by(...).{name}(...)"
                )
            raise AttributeError(f"a Stream has no {name!r}; it has {', '.join(_public_methods(Stream))}")


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns or ())


def _public_methods(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]
