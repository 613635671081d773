"""Keyed streams: where state lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.api.durations import Duration, seconds, signed_seconds
from penstock.graph import nodes
from penstock.graph.errors import Site
from penstock.graph.plan import Plan
from penstock.graph.schemas import Returns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from penstock.api.stream import Stream
    from penstock.api.windowed import JoinedStream, WindowedStream
    from penstock.graph.joins import JoinInput
    from penstock.operators.aggregation.declare import Aggregate
    from penstock.operators.fold import RowFunction
    from penstock.operators.keyed import KeyedContext, KeyedFunction
    from penstock.operators.windows.declare import Trigger, Windows
    from penstock.state.declare import StateDeclaration


class KeyedStream:
    """A stream whose records are brought together by key. Made by `Stream.key_by`."""

    def __init__(self, plan: Plan, routes: nodes.Routes, key: tuple[str, ...]) -> None:
        self._plan, self._routes, self._key = plan, routes, key

    @property
    def schema(self) -> pa.Schema:
        return nodes.schema_of(self._routes)

    @property
    def key(self) -> tuple[str, ...]:
        return self._key

    def process(
        self,
        function: KeyedFunction | type[KeyedFunction] | Callable[[Any, Any, KeyedContext], None],
        *,
        returns: Returns | None = None,
        state: StateDeclaration[Any] | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Calls a `ps.KeyedFunction` for every row, with state and timers of the row's key. Or, for one state, a plain
        function:
        `process(lambda row, total, ctx: ..., state=ps.value(int, default=0), returns={...})`."""
        from penstock.api.stream import Stream
        from penstock.graph.keyed import add_process

        return Stream(
            self._plan, add_process(self._plan, self._routes, self._key, function, returns, state, uid, parallelism)
        )

    def transform_with_state(
        self,
        processor: StatefulProcessor,
        *,
        returns: Returns | None = None,
        time_mode: str = "none",
        initial_state: pa.Table | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Runs a `StatefulProcessor` that was written for Spark's `transformWithState`, unchanged: with value, list and
        map state, timers (`time_mode="processingtime"` or `"eventtime"`), times to live and an initial state (a table
        that has the key's columns)."""
        from penstock.api.stream import Stream
        from penstock.graph.processors import add_processor

        routes = add_processor(
            self._plan, self._routes, self._key, processor, returns, time_mode, initial_state, uid, parallelism
        )
        return Stream(self._plan, routes)

    def window(
        self,
        windows: Windows,
        *,
        allowed_lateness: Duration = 0,
        early: Trigger | None = None,
        on: str | None = None,
    ) -> WindowedStream:
        """Cuts the records of each key into windows: `window(ps.tumbling("10s")).aggregate(n=ps.count())`.

        A record later than all its windows by more than `allowed_lateness` goes to the result's `late` stream; within
        it, the window's row is put out again. `early` puts rows out before the window ends: `early=ps.every("1s")`.
        Event time is in the column that `with_watermark` named, or `on` another one."""
        from penstock.api.windowed import windowed

        return windowed(self._plan, self._routes, self._key, windows, allowed_lateness, early, on)

    def reduce(
        self,
        function: RowFunction | None = None,
        /,
        *,
        output: str = "updates",
        combine: str = "auto",
        uid: str | None = None,
        parallelism: int | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """A running aggregate per key: `reduce(n=ps.count(), total=ps.sum("amount"))` gives the key's columns and
        these. Or a function of two rows, `reduce(lambda best, row: row if row.score > best.score else best)`, that
        keeps the columns. The updated row of a key is put out whenever a batch had rows of it; with
        `output="changelog"` what has changed, marked in a column `op`: `insert`, or `update_before` and
        `update_after`.

        `combine`: whether the rows of a key that are in one batch become one before they are sent, which can be done
        with counts, sums, minima and maxima, and helps where a few keys have most of the records. "auto": while it
        pays; "always"; "never"."""
        from penstock.api.stream import Stream
        from penstock.graph.keyed import add_reduce

        return Stream(
            self._plan,
            add_reduce(self._plan, self._routes, self._key, function, aggregates, output, combine, uid, parallelism),
        )

    def join(
        self,
        other: KeyedStream,
        *,
        how: str = "inner",
        ttl: Duration | tuple[Duration | None, Duration | None] | None = None,
        suffix: str = "_right",
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """All pairs of rows with the same key, of all that has come so far: `orders.key_by("user").join(
        users.key_by("id"), how="left")`. `how` is `inner`, `left`, `right`, `full`, `semi` (rows of this stream that
        have a match) or `anti` (that have none).

        Where a row that was put out may be taken back later, the result is a changelog: a column `op` says `insert`
        or `delete`. That is so if rows without a match are put out, or if one of the streams is a changelog itself.
        Rows are kept for ever, or for a time to live after they came: `ttl="1h"`, or `ttl=("1h", None)` for each
        side."""
        from penstock.api.stream import Stream
        from penstock.graph.joins import add_join

        site = nodes.site_of("join", uid)
        left_ttl, right_ttl = ttl if isinstance(ttl, tuple) else (ttl, ttl)
        lifetimes = lifetime(left_ttl, site), lifetime(right_ttl, site)
        return Stream(
            self._plan, add_join(self._input(), keyed_input(other, site), how, lifetimes, suffix, uid, parallelism)
        )

    def interval_join(
        self,
        other: KeyedStream,
        *,
        lower: Duration,
        upper: Duration,
        how: str = "inner",
        on: tuple[str, str] | None = None,
        suffix: str = "_right",
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> JoinedStream:
        """Pairs of rows with the same key whose event times are near: that of the other stream is between `lower` and
        `upper` from that of this one, both included: `orders.key_by("id").interval_join(payments.key_by("order"),
        lower="0s", upper="1h", how="left")`. `how` is as in `join`; rows without a match are put out when none can
        come any more, so that nothing is ever taken back. `on` names the columns of event time on both sides, where
        they are not those that `with_watermark` named."""
        from penstock.api.windowed import JoinedStream
        from penstock.graph.joins import add_interval_join

        site = nodes.site_of("interval_join", uid)
        try:
            bounds = signed_seconds(lower, "lower"), signed_seconds(upper, "upper")
        except ValueError as error:
            raise site.error(str(error)) from None
        left_on, right_on = on or (None, None)
        left, right = self._input(left_on), keyed_input(other, site, right_on)
        milliseconds = round(bounds[0] * 1_000), round(bounds[1] * 1_000)
        results, late = add_interval_join(left, right, milliseconds, how, suffix, uid, parallelism)
        return JoinedStream(self._plan, results, *late)

    def temporal_join(
        self,
        other: KeyedStream,
        *,
        how: str = "inner",
        on: tuple[str, str] | None = None,
        suffix: str = "_right",
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> JoinedStream:
        """Each row with the version of its key in the other stream that was valid at its event time, the newest one up
        to it: `orders.key_by("currency").temporal_join(rates.key_by("currency"))`. `how="left"` puts out rows without a
        version, too. Rows wait until the event time of both streams has reached theirs. `on` is as in
        `interval_join`."""
        from penstock.api.windowed import JoinedStream
        from penstock.graph.joins import add_temporal_join

        left_on, right_on = on or (None, None)
        right = keyed_input(other, nodes.site_of("temporal_join", uid), right_on)
        results, late = add_temporal_join(self._input(left_on), right, how, suffix, uid, parallelism)
        return JoinedStream(self._plan, results, *late)

    def _input(self, on: str | None = None) -> JoinInput:
        from penstock.graph.joins import JoinInput

        return JoinInput(self._plan, self._routes, self._key, on)

    def __repr__(self) -> str:
        return f"<KeyedStream by {', '.join(self._key)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from penstock.api.stream import Stream  # the two kinds of stream know each other

            if name in vars(Stream):
                raise AttributeError(
                    f"{name} needs no key: write stream.{name}(...) before key_by(...), or after process(...) or "
                    "reduce(...)"
                )
            raise AttributeError(
                f"a KeyedStream has no {name!r}; it has process, reduce, window, transform_with_state and joins"
            )


def keyed_input(other: Any, site: Site, on: str | None = None) -> JoinInput:
    """The other side of a join."""
    if not isinstance(other, KeyedStream):
        raise site.error(
            f"takes a keyed stream, not {type(other).__name__}: write other.key_by(...), with the same key"
        )
    return other._input(on)


def lifetime(ttl: Duration | None, site: Site) -> int | None:
    """In milliseconds."""
    try:
        return None if ttl is None else max(1, round(seconds(ttl, "ttl", positive=True) * 1_000))
    except ValueError as error:
        raise site.error(str(error)) from None
