"""All queries by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import penstock as ps
from penstock.bench.nexmark import joined, queries
from penstock.bench.nexmark.events import Nexmark
from penstock.bench.nexmark.site import Site


@dataclass(frozen=True)
class Query:
    write: Callable[[Site], ps.Stream]
    key: tuple[str, ...] = ()
    """What names a row of the result, if rows are put out again when they change: the last one counts."""
    of: tuple[str, ...] = ("bids",)
    """The tables that it reads."""

    @property
    def what(self) -> str:
        """It in a few words: how its function's description begins."""
        return (self.write.__doc__ or "").partition(":")[0].partition(".")[0]

    def events(self, site: Nexmark) -> int:
        """How many records these tables have."""
        return sum(getattr(site, table)().count or 0 for table in self.of)


_TWO = ("auctions", "bids")

QUERIES = {
    "q0": Query(queries.q0),
    "q1": Query(queries.q1),
    "q2": Query(queries.q2),
    "q3": Query(joined.q3, of=("persons", "auctions")),
    "q4": Query(joined.q4, ("category",), _TWO),
    "q5": Query(queries.q5),
    "q6": Query(joined.q6, of=_TWO),
    "q7": Query(joined.q7),
    "q8": Query(joined.q8, of=("persons", "auctions")),
    "q9": Query(joined.q9, ("id",), _TWO),
    "q10": Query(queries.q10),
    "q11": Query(queries.q11),
    "q12": Query(queries.q12),
    "q13": Query(queries.q13),
    "q14": Query(queries.q14),
    "q15": Query(queries.q15, ("day",)),
    "q16": Query(queries.q16, ("channel", "day")),
    "q17": Query(queries.q17, ("auction", "day")),
    "q18": Query(queries.q18, ("bidder", "auction")),
    "q19": Query(queries.q19, ("auction", "place")),
    "q20": Query(joined.q20, of=_TWO),
    "q21": Query(queries.q21),
    "q22": Query(queries.q22),
}
