"""The queries of Nexmark without a join, as Penstock pipelines.

Each is a function from the site's tables to the stream of its results; what it gives is what the SQL in `answers.py`
gives. Where rows are put out again when they change, `QUERIES` in `catalogue.py` says which columns name a row.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import polars as pl

import penstock as ps
from penstock.bench.nexmark.site import Site

SIDE_ROWS = 10_000
_CHANNEL_ID = r"(?:&|^)channel_id=([^&]*)"


def q0(site: Site) -> ps.Stream:
    """Pass through: what it costs to move the events."""
    return site.bids("auction", "bidder", "price", "date_time", "extra")


def q1(site: Site) -> ps.Stream:
    """Currency conversion: prices in euros."""
    bids = site.bids("auction", "bidder", "price", "date_time", "extra")
    return bids.select_sql("auction", "bidder", "0.908 * price as price", "date_time", "extra")


def q2(site: Site) -> ps.Stream:
    """Selection: the bids for every 123rd auction."""
    return site.bids("auction", "price").filter_sql("auction % 123 = 0")


def q5(site: Site) -> ps.Stream:
    """Hot items: which auctions had the most bids in the last ten seconds, told every two."""
    bids = site.timed_bids("auction", "date_time")
    counts = bids.key_by("auction").window(ps.sliding("10s", every="2s")).aggregate(num=ps.count(), uid="counts")
    # The results of all windows that end together are in one window of two seconds.
    rows = counts.with_columns(row=pl.struct("auction", "num"))
    hottest = rows.window(ps.tumbling("2s")).aggregate(most=ps.max("num"), rows=ps.collect("row"), uid="hottest")
    returns = {"auction": int, "num": int, "window_end": counts.schema.field("window_end").type}
    return hottest.map_batches(_with_the_most, returns=returns)


def _with_the_most(frame: pl.DataFrame) -> pl.DataFrame:
    rows = frame.explode("rows").unnest("rows").filter(pl.col("num") == pl.col("most"))
    return rows.select("auction", "num", "window_end")


def q10(site: Site) -> ps.Stream:
    """Log to files: all bids, with the day and minute by which they are to be filed."""
    bids = site.bids("auction", "bidder", "price", "date_time", "extra")
    return bids.with_columns_sql("strftime(date_time, '%Y-%m-%d') as dt", "strftime(date_time, '%H:%M') as hm")


def q11(site: Site) -> ps.Stream:
    """User sessions: how many bids a person made without a pause of ten seconds."""
    bids = site.timed_bids("bidder", "date_time")
    return bids.key_by("bidder").window(ps.session(gap="10s")).aggregate(bid_count=ps.count(), uid="sessions")


def q12(site: Site) -> ps.Stream:
    """Processing time windows: how many bids of each person arrived in ten seconds of the clock."""
    arriving = site.bids("bidder").map_batches(_arrived, returns={"bidder": int, "arrived": pl.Datetime("ms")})
    timed = arriving.with_watermark("arrived", uid="clock")
    return timed.key_by("bidder").window(ps.tumbling("10s")).aggregate(bid_count=ps.count(), uid="windows")


def _arrived(frame: pl.DataFrame) -> pl.DataFrame:
    now = pl.lit(time.time_ns() // 1_000_000).cast(pl.Datetime("ms"))
    return frame.select("bidder", arrived=now)


def q13(site: Site) -> ps.Stream:
    """Bounded side input: bids with a value from a table that every worker has."""
    bids = site.bids("auction", "bidder", "price", "date_time")
    returns = {field.name: field.type for field in bids.schema} | {"value": str}
    return bids.map_batches(_with_side_value, returns=returns)


@cache
def side_table() -> pl.DataFrame:
    keys = pl.int_range(SIDE_ROWS, eager=True)
    return pl.DataFrame({"key": keys, "value": keys.cast(pl.String).str.zfill(5)})


def _with_side_value(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(key=pl.col("auction") % SIDE_ROWS).join(side_table(), on="key", how="inner").drop("key")


def q14(site: Site) -> ps.Stream:
    """Calculation: dear bids, the time of day by name, and a count of letters."""
    bids = site.bids("auction", "bidder", "price", "date_time", "extra")
    dear = bids.filter_sql("0.908 * price > 1000000", "0.908 * price < 50000000")
    return dear.with_columns_sql("extract(hour from date_time) as hour").select_sql(
        "auction",
        "bidder",
        "0.908 * price as price",
        """case when hour >= 8 and hour <= 18 then 'dayTime'
                when hour <= 6 or hour >= 20 then 'nightTime'
                else 'otherTime' end as bid_time_type""",
        "date_time",
        "extra",
        "cast(length(extra) - length(replace(extra, 'c', '')) as bigint) as c_counts",
    )


def q15(site: Site) -> ps.Stream:
    """Bidding statistics of a day: bids, bidders and auctions, in three ranks of price."""
    bids = _ranked(site.bids("auction", "bidder", "price", "date_time"))
    return bids.key_by("day").reduce(**_in_ranks("bids"), **_in_ranks("bidder"), **_in_ranks("auction"), uid="totals")


def q16(site: Site) -> ps.Stream:
    """The same of every channel, and the last minute of the day in which it had a bid."""
    bids = _ranked(site.bids("auction", "bidder", "price", "channel", "date_time"))
    timed = bids.with_columns_sql("strftime(date_time, '%H:%M') as minute")
    return timed.key_by("channel", "day").reduce(
        minute=ps.max("minute"), **_in_ranks("bids"), **_in_ranks("bidder"), **_in_ranks("auction"), uid="totals"
    )


def q17(site: Site) -> ps.Stream:
    """Statistics of an auction and day: bids in three ranks of price; the least, highest, mean price and their sum."""
    bids = _ranked(site.bids("auction", "price", "date_time"))
    return bids.key_by("auction", "day").reduce(
        **_in_ranks("bids"),
        min_price=ps.min("price"),
        max_price=ps.max("price"),
        avg_price=ps.mean("price"),
        sum_price=ps.sum("price"),
        uid="totals",
    )


def _ranked(bids: ps.Stream) -> ps.Stream:
    return bids.with_columns_sql(
        "strftime(date_time, '%Y-%m-%d') as day",
        "price < 10000 as rank1",
        "price >= 10000 and price < 1000000 as rank2",
        "price >= 1000000 as rank3",
    )


def _in_ranks(what: str) -> dict[str, Any]:
    """Of all bids and of each rank: how many bids, or different values of a column."""
    aggregates = {}
    for rank in (None, "rank1", "rank2", "rank3"):
        aggregate = ps.count(where=rank) if what == "bids" else ps.count_distinct(what, where=rank)
        aggregates[f"{rank or 'total'}_{what}{'' if what == 'bids' else 's'}"] = aggregate
    return aggregates


def q18(site: Site) -> ps.Stream:
    """Last bid: the latest one of every person for every auction."""
    bids = site.bids()
    values: dict[str, Any] = {
        name: ps.last(name, by="date_time") for name in bids.columns if name not in ("bidder", "auction")
    }
    return bids.key_by("bidder", "auction").reduce(**values, uid="latest")


def q19(site: Site) -> ps.Stream:
    """Top ten: the ten highest bids for every auction, and their places."""
    bids = site.bids()
    packed = bids.with_columns(bid=pl.struct(pl.exclude("auction")))
    best = packed.key_by("auction").reduce(bids=ps.top_n("bid", 10, by=("price", "date_time")), uid="best")
    returns = {field.name: field.type for field in bids.schema} | {"place": int}
    return best.map_batches(_each_place, returns=returns)


def _each_place(frame: pl.DataFrame) -> pl.DataFrame:
    places = frame.with_columns(place=pl.int_ranges(1, pl.col("bids").list.len() + 1))
    return places.explode("bids", "place").unnest("bids")


def q21(site: Site) -> ps.Stream:
    """Channel ids: of the known channels, and of those whose address tells it."""
    bids = site.bids("auction", "bidder", "price", "channel", "url")
    told = bids.with_columns(told=pl.col("url").str.extract(_CHANNEL_ID))
    kept = told.filter_sql("told is not null or lower(channel) in ('apple', 'google', 'facebook', 'baidu')")
    return kept.select_sql(
        "auction",
        "bidder",
        "price",
        "channel",
        """case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
                               when 'baidu' then '3' else told end as channel_id""",
    )


def q22(site: Site) -> ps.Stream:
    """Directories of an address."""
    bids = site.bids("auction", "bidder", "price", "channel", "url")
    return bids.select_sql(
        "auction",
        "bidder",
        "price",
        "channel",
        dir1="split_part(url, '/', 4)",
        dir2="split_part(url, '/', 5)",
        dir3="split_part(url, '/', 6)",
    )
