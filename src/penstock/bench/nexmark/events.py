"""The events of Nexmark: persons who come to an auction site, auctions that they open, and bids.

After the description that was published with the benchmark ("NEXMark: a benchmark for queries over data streams", as it
was continued by Apache Beam and Flink): of fifty events one is a person, three are auctions and forty-six are bids, in
this order. Half of the bids are for a *hot* auction, three of four by a hot bidder, and three of four auctions are
of a hot seller, where hot is whoever's number is the last multiple of a hundred; all others are spread over what is
active, and a few come before their auction or person does.

Each kind of event is a table with its own source, whose records are a pure function of the number of the event among
all events, so that the three agree with each other. Two choices of ours: times are in microseconds, so that every event
has its own and "the latest" is never a matter of luck; the texts that only fill are drawn from tables of a few
thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.bench.nexmark.draws import Bits, Index, below, bits, chosen, fillers, one_in, prices, texts

PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
FIRST_PERSON = FIRST_AUCTION = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE_PERSONS, AUCTIONS_IN_FLIGHT = 1_000, 100
LEAD = 10
"""How many persons and auctions to come are already spoken of."""
HOT_EVERY = 100
HOT_AUCTIONS, HOT_BIDDERS, HOT_SELLERS, HOT_CHANNELS = 2, 4, 4, 2
"""One in so many is not hot."""
CHANNELS = 10_000

_TIME = pa.timestamp("us")
_STATES = texts(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = texts(["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Redmond", "Seattle"])
_FIRST_NAMES = ["Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Jim", "Leslie", "Niklaus", "Tony"]
_LAST_NAMES = ["Allen", "Dijkstra", "Gray", "Hoare", "Hopper", "Knuth", "Lamport", "Liskov", "Lovelace", "Turing"]
_HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]


@dataclass(frozen=True)
class Nexmark:
    """So many events in all, so many in a second of event time."""

    count: int
    per_second: float = 10_000
    begin: str = "2015-07-15T00:00:00"
    whole: bool = False
    """Make all columns of an event, also those that a query does not read."""
    rate: float | None = None
    """Events of all tables per second of the clock; None: as fast as they are taken."""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be 0 or more, not {self.count}")
        if not 0 < self.per_second <= 1_000_000:
            raise ValueError(f"per_second must be above 0 and at most a million, not {self.per_second}")

    def persons(self, *columns: str) -> ps.sources.Generator:
        return self._source("persons", columns)

    def auctions(self, *columns: str) -> ps.sources.Generator:
        return self._source("auctions", columns)

    def bids(self, *columns: str) -> ps.sources.Generator:
        """These columns, or all."""
        return self._source("bids", columns)

    def _source(self, name: str, columns: tuple[str, ...]) -> ps.sources.Generator:
        table = Table(self, name, tuple(COLUMNS[name]) if self.whole or not columns else columns)
        rounds, rest = divmod(self.count, ROUND)
        count = rounds * table.share + min(max(rest - table.offset, 0), table.share)
        return ps.sources.Generator(count, table, rate=self.rate and self.rate * table.share / ROUND)

    @property
    def gap(self) -> int:
        """Microseconds from one event to the next."""
        return round(1_000_000 / self.per_second)

    def times(self, number: Index) -> Index:
        return np.datetime64(self.begin, "us").astype(np.int64) + number * self.gap


@dataclass(frozen=True)
class Table:
    """The records of one kind, numbered on their own."""

    nexmark: Nexmark
    name: str
    columns: tuple[str, ...]

    @property
    def share(self) -> int:
        return _SHARES[self.name][0]

    @property
    def offset(self) -> int:
        return _SHARES[self.name][1]

    def __call__(self, index: Index) -> dict[str, Any]:
        number = index // self.share * ROUND + self.offset + index % self.share
        return {column: COLUMNS[self.name][column](self.nexmark, number) for column in self.columns}


_SHARES = {"persons": (PERSONS, 0), "auctions": (AUCTIONS, PERSONS), "bids": (BIDS, PERSONS + AUCTIONS)}


# ---- what the columns consist of ----
def _time(nexmark: Nexmark, number: Index) -> pa.Array:
    return pa.array(nexmark.times(number)).view(_TIME)


def _expiry(nexmark: Nexmark, number: Index) -> pa.Array:
    """After as long as it takes, on average, for so many auctions to be opened as are in flight."""
    longest = 2 * (AUCTIONS_IN_FLIGHT * ROUND // AUCTIONS) * nexmark.gap // 1_000
    return pa.array(nexmark.times(number) + 1_000 * (1 + below(bits(number, 4), max(longest, 1)))).view(_TIME)


def _auction_id(nexmark: Nexmark, number: Index) -> Index:
    return FIRST_AUCTION + number // ROUND * AUCTIONS + number % ROUND - PERSONS


def _auction_of_bid(nexmark: Nexmark, number: Index) -> Index:
    drawn = bits(number, 0)
    newest = number // ROUND * AUCTIONS + AUCTIONS - 1
    oldest = np.maximum(newest - AUCTIONS_IN_FLIGHT, 0)
    other = oldest + below(drawn, newest - oldest + 1 + LEAD)
    return FIRST_AUCTION + np.where(one_in(drawn, HOT_AUCTIONS), other, newest // HOT_EVERY * HOT_EVERY)


def _person(number: Index, drawn: Bits, ratio: int, shift: int) -> Index:
    """Who sells or bids: mostly a hot one, or else any that is active."""
    newest = number // ROUND
    active = np.minimum(newest + 1, ACTIVE_PERSONS)
    other = newest + 1 - active + below(drawn, active + LEAD)
    return FIRST_PERSON + np.where(one_in(drawn, ratio), other, newest // HOT_EVERY * HOT_EVERY + shift)


def _channel(number: Index) -> pa.Array:
    """As a row of the tables of channels and their addresses."""
    drawn = bits(number, 3)
    hot = len(_HOT_CHANNELS)
    return pa.array(np.where(one_in(drawn, HOT_CHANNELS), hot + below(drawn, CHANNELS), below(drawn, hot)))


# ---- tables of texts ----
@cache
def _names() -> pa.StringArray:
    return texts([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])


@cache
def _emails() -> pa.StringArray:
    parts = fillers(2_048, 4, 9, 0)
    return texts([f"{user}@{host}.com" for user, host in zip(parts[::2], parts[1::2], strict=True)])


@cache
def _cards() -> pa.StringArray:
    digits = below(bits(-1 - np.arange(4_096), 2), 10_000).reshape(-1, 4).tolist()
    return texts([" ".join(f"{group:04}" for group in card) for card in digits])


@cache
def _items() -> pa.StringArray:
    return texts(fillers(2_048, 5, 20, 4))


@cache
def _descriptions() -> pa.StringArray:
    return texts(fillers(2_048, 20, 100, 6))


@cache
def _extras() -> pa.StringArray:
    return texts(fillers(4_096, 30, 60, 8))


@cache
def _channels() -> pa.StringArray:
    return texts([*_HOT_CHANNELS, *(f"channel-{channel}" for channel in range(CHANNELS))])


@cache
def _urls() -> pa.StringArray:
    """Of every channel; nine of ten that are not hot say which one they are."""
    parts = fillers(3 * (len(_HOT_CHANNELS) + CHANNELS), 3, 6, 10)
    paths = ["/".join(parts[place : place + 3]) for place in range(0, len(parts), 3)]
    known = ~one_in(bits(-1 - np.arange(CHANNELS), 12), 10)
    ids = [""] * len(_HOT_CHANNELS) + [
        f"&channel_id={channel}" if known[channel] else "" for channel in range(CHANNELS)
    ]
    return texts([f"https://www.nexmark.com/{path}/item.htm?query=1{id}" for path, id in zip(paths, ids, strict=True)])


# ---- the tables ----
COLUMNS: dict[str, dict[str, Callable[[Nexmark, Index], Any]]] = {
    "persons": {
        "id": lambda _, number: FIRST_PERSON + number // ROUND,
        "name": lambda _, number: chosen(_names(), bits(number, 0)),
        "email": lambda _, number: chosen(_emails(), bits(number, 1)),
        "credit_card": lambda _, number: chosen(_cards(), bits(number, 2)),
        "city": lambda _, number: chosen(_CITIES, bits(number, 3)),
        "state": lambda _, number: chosen(_STATES, bits(number, 4)),
        "date_time": _time,
        "extra": lambda _, number: chosen(_extras(), bits(number, 5)),
    },
    "auctions": {
        "id": _auction_id,
        "item_name": lambda _, number: chosen(_items(), bits(number, 1)),
        "description": lambda _, number: chosen(_descriptions(), bits(number, 2)),
        "initial_bid": lambda _, number: prices(bits(number, 0)),
        "reserve": lambda _, number: prices(bits(number, 0)) + prices(bits(number, 3)),
        "date_time": _time,
        "expires": _expiry,
        "seller": lambda _, number: _person(number, bits(number, 5), HOT_SELLERS, 0),
        "category": lambda _, number: FIRST_CATEGORY + below(bits(number, 6), CATEGORIES),
        "extra": lambda _, number: chosen(_extras(), bits(number, 7)),
    },
    "bids": {
        "auction": _auction_of_bid,
        "bidder": lambda _, number: _person(number, bits(number, 1), HOT_BIDDERS, 1),
        "price": lambda _, number: prices(bits(number, 2)),
        "channel": lambda _, number: _channels().take(_channel(number)),
        "url": lambda _, number: _urls().take(_channel(number)),
        "date_time": _time,
        "extra": lambda _, number: chosen(_extras(), bits(number, 4)),
    },
}
