"""The queries of Nexmark that join, as Penstock pipelines."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl

import penstock as ps
from penstock.bench.nexmark.site import Site

_EPOCH, _MICROSECOND = dt.datetime(1970, 1, 1), dt.timedelta(microseconds=1)


def q3(site: Site) -> ps.Stream:
    """Local item suggestion: who sells in Oregon, Idaho or California, in category 10."""
    auctions = site.auctions("id", "seller", "category").filter_sql("category = 10")
    persons = site.persons("id", "name", "city", "state").filter_sql("state in ('OR', 'ID', 'CA')")
    sold = auctions.key_by("seller").join(persons.key_by("id"), suffix="_person", uid="sellers")
    return sold.select("name", "city", "state", "id")


def q4(site: Site) -> ps.Stream:
    """Average price of a category: the mean of what its auctions have reached so far.

    The highest bid of an auction changes, and the mean with it: the changelog takes the old price out and the new one
    in."""
    pairs = _in_time(
        site.auctions("id", "category", "date_time", "expires"), site.bids("auction", "price", "date_time")
    )
    highest = pairs.key_by("id", "category").reduce(final=ps.max("price"), output="changelog", uid="highest")
    signed = highest.with_columns_sql("case when op = 'update_before' then -1 else 1 end as sign").with_columns_sql(
        "final * sign as change"
    )
    totals = signed.key_by("category").reduce(total=ps.sum("change"), auctions=ps.sum("sign"), uid="totals")
    return totals.select_sql("category", "total / auctions as final")


def q6(site: Site) -> ps.Stream:
    """Average selling price: the mean of a seller's last ten auctions, told whenever one closes."""
    auctions = site.timed_auctions("id", "seller", "date_time", "expires")
    pairs = _in_time(auctions, site.timed_bids("auction", "price", "date_time"))
    returns = {"seller": int, "auction": int, "mean": float}
    return pairs.key_by("seller").process(SellingPrices, returns=returns, uid="sellers")


class SellingPrices(ps.KeyedFunction):
    """An auction closes when event time has passed its expiry: no bid that counts can come any more."""

    offers = ps.map(int, tuple[int, int])
    """Of every open auction: when it expires, in microseconds, and the highest bid."""
    last = ps.list(int)

    def process(self, row: Any, ctx: ps.KeyedContext) -> None:
        expires = (row.expires - _EPOCH) // _MICROSECOND
        _, price = self.offers.get(row.id, (0, 0))
        self.offers[row.id] = (expires, max(price, row.price))
        ctx.timer_at(expires // 1_000 + 1)

    def on_timer(self, timer: Any, ctx: ps.KeyedContext) -> None:
        closed = sorted(
            (expires, id, price) for id, (expires, price) in self.offers.items() if expires < timer.time * 1_000
        )
        for _, id, price in closed:
            del self.offers[id]
            prices = [*self.last, price][-10:]
            self.last.set(prices)
            ctx.emit(seller=ctx.key, auction=id, mean=sum(prices) / len(prices))


def q7(site: Site) -> ps.Stream:
    """Highest bid: that of every ten seconds; all of them, if several are equal."""
    bids = site.timed_bids("auction", "price", "bidder", "date_time", "extra")
    highest = bids.window(ps.tumbling("10s")).aggregate(price=ps.max("price"), uid="highest")
    # A window's result is of its last millisecond: up to ten seconds after the bid, or within the same millisecond.
    equal = bids.key_by("price").interval_join(highest.key_by("price"), lower="-1ms", upper="10s", uid="equal")
    same_window = (pl.col("window_start") <= pl.col("date_time")) & (pl.col("date_time") < pl.col("window_end"))
    return equal.filter(same_window).select(*bids.columns)


def q8(site: Site) -> ps.Stream:
    """New users: who opened an auction in the ten seconds in which they came."""
    persons = site.timed_persons("id", "name", "date_time").key_by("id")
    sellers = site.timed_auctions("seller", "date_time").key_by("seller")
    new = persons.window(ps.tumbling("10s")).join(sellers, how="semi", uid="new")
    return new.select("id", "name", starttime="window_start")


def q9(site: Site) -> ps.Stream:
    """Winning bids: the highest of every auction, the earliest of equals."""
    pairs = _in_time(site.auctions(), site.bids("auction", "bidder", "price", "date_time", "extra"))
    packed = pairs.with_columns(pair=pl.struct(pl.exclude("id")), earliness=-pl.col("date_time_bid").cast(pl.Int64))
    best = packed.key_by("id").reduce(pair=ps.top_n("pair", 1, by=("price", "earliness")), uid="best")
    return best.map_batches(_unpacked, returns=pairs.schema)


def _unpacked(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns_seq(pl.col("pair").list.first()).unnest("pair")


def _in_time(auctions: ps.Stream, bids: ps.Stream) -> ps.Stream:
    """Auctions with the bids that came while they were open."""
    pairs = auctions.key_by("id").join(bids.key_by("auction"), suffix="_bid", uid="pairs")
    return pairs.filter(pl.col("date_time_bid").is_between("date_time", "expires"))


def q20(site: Site) -> ps.Stream:
    """Expanded bids: with all of their auction, of category 10."""
    auctions = site.auctions().filter_sql("category = 10")
    return site.bids().key_by("auction").join(auctions.key_by("id"), suffix="_auction", uid="expanded")
