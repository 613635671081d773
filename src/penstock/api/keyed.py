"""Keyed streams: where state lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.graph import nodes
from penstock.graph.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa


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
            raise AttributeError(f"a KeyedStream has no {name!r}; it has process and reduce")
