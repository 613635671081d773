"""The auction site as the queries see it: its three tables as streams of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import penstock as ps
from penstock.bench.nexmark.events import Nexmark


@dataclass(frozen=True)
class Site:
    pipeline: ps.Pipeline
    events: Nexmark

    def persons(self, *columns: str) -> ps.Stream:
        return self._table("persons", columns)

    def auctions(self, *columns: str) -> ps.Stream:
        return self._table("auctions", columns)

    def bids(self, *columns: str) -> ps.Stream:
        """These columns, or all. A query reads each table once."""
        return self._table("bids", columns)

    def timed_persons(self, *columns: str) -> ps.Stream:
        return self.persons(*columns).with_watermark("date_time", uid="persons-time")

    def timed_auctions(self, *columns: str) -> ps.Stream:
        return self.auctions(*columns).with_watermark("date_time", uid="auctions-time")

    def timed_bids(self, *columns: str) -> ps.Stream:
        """With event time: of every source, the events come in its order."""
        return self.bids(*columns).with_watermark("date_time", uid="bids-time")

    def _table(self, name: str, columns: tuple[str, ...]) -> ps.Stream:
        stream = self.pipeline.source(getattr(self.events, name)(*columns), uid=name)
        return stream if not columns or stream.columns == list(columns) else stream.select(*columns)
