"""Windowed streams: a stream cut into finite pieces, waiting to be told what to compute of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.durations import Duration, seconds
from penstock.api.stream import Stream
from penstock.graph import nodes
from penstock.graph.plan import Plan

if TYPE_CHECKING:
    from penstock.api.keyed import KeyedStream
    from penstock.graph.windows import WindowSpec
    from penstock.operators.aggregation.declare import Aggregate
    from penstock.operators.windows.declare import Trigger, Windows


class WindowedStream:
    """Made by `KeyedStream.window` and `Stream.window`."""

    def __init__(self, plan: Plan, routes: nodes.Routes, key: tuple[str, ...], spec: WindowSpec) -> None:
        self._plan, self._routes, self._key, self._spec = plan, routes, key, spec

    def aggregate(
        self, *, uid: str | None = None, parallelism: int | None = None, **aggregates: Aggregate
    ) -> StreamWithLate:
        """One row for every key and window: the key's columns, `window_start` and `window_end` (of windows of event
        time), and one column for each aggregate: `aggregate(n=ps.count(), total=ps.sum("amount"))`."""
        from penstock.graph.windows import add_windows

        results, late = add_windows(self._plan, self._routes, self._key, self._spec, aggregates, uid, parallelism)
        return StreamWithLate(self._plan, results, late)

    def join(
        self,
        other: KeyedStream,
        *,
        how: str = "inner",
        on: str | None = None,
        suffix: str = "_right",
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> JoinedStream:
        """Pairs of rows that have the same key and are in the same window, put out when the window has ended:
        `clicks.key_by("user").window(ps.tumbling("10s")).join(views.key_by("user"))`, with the columns `window_start`
        and `window_end`. `how` is as in `KeyedStream.join`; nothing is ever taken back. `on` names the column of the
        other stream's event time, where that is not the one that `with_watermark` named."""
        from penstock.api.keyed import keyed_input
        from penstock.graph.joins import JoinInput, add_window_join

        right = keyed_input(other, nodes.site_of("join", uid), on)
        left = JoinInput(self._plan, self._routes, self._key, self._spec.on)
        results, late = add_window_join(left, right, self._spec, how, suffix, uid, parallelism)
        return JoinedStream(self._plan, results, *late)

    def __repr__(self) -> str:
        key = f" by {', '.join(self._key)}" if self._key else ""
        return f"<WindowedStream of {self._spec.windows}{key}>"


class StreamWithLate(Stream):
    """What is made of records that can be too late: a stream like any other, beside which there are those."""

    def __init__(self, plan: Plan, routes: nodes.Routes, late: nodes.Routes | None) -> None:
        super().__init__(plan, routes)
        self._late = late

    @property
    def late(self) -> Stream:
        """The records that came too late to count, or have no time, as they came."""
        if self._late is None:
            raise nodes.site_of("late").error("what knows no time has no late records")
        return Stream(self._plan, self._late)


class JoinedStream(StreamWithLate):
    """What is made of two streams by event time: beside it there are the late records of both."""

    def __init__(self, plan: Plan, routes: nodes.Routes, late: nodes.Routes, late_right: nodes.Routes) -> None:
        super().__init__(plan, routes, late)
        self._late_right = late_right

    @property
    def late_right(self) -> Stream:
        """The records of the other stream that came too late to count, or have no time; `late` has those of this."""
        return Stream(self._plan, self._late_right)


def windowed(
    plan: Plan,
    routes: nodes.Routes,
    key: tuple[str, ...],
    windows: Windows,
    allowed_lateness: Duration,
    early: Trigger | None,
    on: str | None,
) -> WindowedStream:
    from penstock.graph.windows import window_spec

    try:
        lateness = round(seconds(allowed_lateness, "allowed_lateness") * 1_000)
    except ValueError as error:
        raise nodes.site_of("window").error(str(error)) from None
    return WindowedStream(plan, routes, key, window_spec(windows, lateness, early, on))
