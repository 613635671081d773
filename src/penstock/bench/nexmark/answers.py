"""The same queries as SQL, for DuckDB: the independent answer that a pipeline's results are compared with.

The texts follow those of the Nexmark for Flink SQL as far as DuckDB has the words. Windows are computed from the time,
and of equals the order is the one that the pipelines say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.nexmark.events import Nexmark
from penstock.bench.nexmark.queries import side_table

if TYPE_CHECKING:
    import pyarrow as pa

_BEGIN = "date_time - to_microseconds(epoch_us(date_time) % {seconds}000000)"

_RANKS = """
    count(*) as total_bids, count(*) filter (where price < 10000) as rank1_bids,
    count(*) filter (where price >= 10000 and price < 1000000) as rank2_bids,
    count(*) filter (where price >= 1000000) as rank3_bids"""
_DISTINCT = """
    count(distinct {0}) as total_{0}s, count(distinct {0}) filter (where price < 10000) as rank1_{0}s,
    count(distinct {0}) filter (where price >= 10000 and price < 1000000) as rank2_{0}s,
    count(distinct {0}) filter (where price >= 1000000) as rank3_{0}s"""
_ALL_RANKS = ", ".join([_RANKS, _DISTINCT.format("bidder"), _DISTINCT.format("auction")])

SQL = {
    "q0": "select auction, bidder, price, date_time, extra from bids",
    "q1": "select auction, bidder, 0.908 * price as price, date_time, extra from bids",
    "q2": "select auction, price from bids where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q4": """
        select category, avg(final) as final from (
            select max(b.price) as final, a.category from auctions a join bids b on a.id = b.auction
            where b.date_time between a.date_time and a.expires group by a.id, a.category)
        group by category""",
    "q5": f"""
        with counts as (
            select auction, count(*) as num, {_BEGIN.format(seconds=2)} + to_seconds(2 * later) + interval 2 second
                as window_end
            from bids, range(5) as windows(later) group by auction, window_end)
        select auction, num, window_end from counts
        qualify num = max(num) over (partition by window_end)""",
    "q6": """
        with closed as (
            select a.id, a.seller, a.expires, max(b.price) as final from auctions a join bids b on a.id = b.auction
            where b.date_time between a.date_time and a.expires group by all)
        select seller, id as auction, avg(final) over (
            partition by seller order by expires, id rows between 9 preceding and current row) as mean
        from closed""",
    "q7": f"""
        select auction, price, bidder, date_time, extra from bids
        qualify price = max(price) over (partition by {_BEGIN.format(seconds=10)})""",
    "q8": f"""
        select distinct p.id, p.name, {_BEGIN.format(seconds=10).replace("date_time", "p.date_time")} as starttime
        from persons p join auctions a on p.id = a.seller
        and epoch_us(p.date_time) // 10000000 = epoch_us(a.date_time) // 10000000""",
    "q9": """
        select a.*, b.bidder, b.price, b.date_time as date_time_bid, b.extra as extra_bid
        from auctions a join bids b on a.id = b.auction
        where b.date_time between a.date_time and a.expires
        qualify row_number() over (partition by a.id order by b.price desc, b.date_time) = 1""",
    "q10": """
        select auction, bidder, price, date_time, extra,
            strftime(date_time, '%Y-%m-%d') as dt, strftime(date_time, '%H:%M') as hm from bids""",
    "q11": """
        with pauses as (
            select *, coalesce(date_time - lag(date_time) over last >= interval 10 second, true) as begins
            from bids window last as (partition by bidder order by date_time)),
        numbered as (
            select *, sum(begins::int) over (partition by bidder order by date_time) as session from pauses)
        select bidder, min(date_time) as window_start, max(date_time) + interval 10 second as window_end,
            count(*) as bid_count
        from numbered group by bidder, session""",
    "q12": "select bidder, count(*) as bid_count from bids group by bidder",
    "q13": """
        select auction, bidder, price, date_time, value from bids join side on auction % 10000 = side.key""",
    "q14": """
        select auction, bidder, 0.908 * price as price,
            case when hour(date_time) >= 8 and hour(date_time) <= 18 then 'dayTime'
                 when hour(date_time) <= 6 or hour(date_time) >= 20 then 'nightTime'
                 else 'otherTime' end as bid_time_type,
            date_time, extra, length(regexp_replace(extra, '[^c]', '', 'g')) as c_counts
        from bids where 0.908 * price > 1000000 and 0.908 * price < 50000000""",
    "q15": f"select strftime(date_time, '%Y-%m-%d') as day, {_ALL_RANKS} from bids group by day",
    "q16": f"""
        select channel, strftime(date_time, '%Y-%m-%d') as day, max(strftime(date_time, '%H:%M')) as minute,
            {_ALL_RANKS}
        from bids group by channel, day""",
    "q17": f"""
        select auction, strftime(date_time, '%Y-%m-%d') as day, {_RANKS}, min(price) as min_price,
            max(price) as max_price, avg(price) as avg_price, sum(price)::bigint as sum_price
        from bids group by auction, day""",
    "q18": """
        select bidder, auction, price, channel, url, date_time, extra from bids
        qualify row_number() over (partition by bidder, auction order by date_time desc) = 1""",
    "q19": """
        select *, row_number() over (partition by auction order by price desc, date_time desc) as place from bids
        qualify place <= 10""",
    "q20": """
        select b.*, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time as date_time_auction, a.expires,
            a.seller, a.category, a.extra as extra_auction
        from bids b join auctions a on b.auction = a.id where a.category = 10""",
    "q21": r"""
        select auction, bidder, price, channel,
            case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
                when 'baidu' then '3' else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
        from bids where regexp_matches(url, '(&|^)channel_id=([^&]*)')
            or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
            split_part(url, '/', 6) as dir3
        from bids""",
}


def answer(query: str, events: Nexmark) -> pa.Table:
    """What DuckDB makes of the same events."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ModuleNotFoundError("comparing with DuckDB needs it: pip install duckdb") from None
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for name in ("persons", "auctions", "bids"):
            if name in SQL[query]:
                source = getattr(events, name)()
                connection.register(name, source.generate(np.arange(source.count)))
        connection.register("side", side_table().to_arrow())
        return connection.sql(SQL[query]).to_arrow_table()
