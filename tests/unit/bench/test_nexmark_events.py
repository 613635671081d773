"""The events of Nexmark are a pure function of their numbers, in the proportions that it describes."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.nexmark.events import COLUMNS, Nexmark

KINDS = ("persons", "auctions", "bids")


def table(kind: str, count: int = 100_000, **options) -> pl.DataFrame:
    source = getattr(Nexmark(count, **options), kind)()
    return pl.DataFrame(source.generate(np.arange(source.count)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20))
def test_a_record_is_the_same_whatever_records_are_made_with_it(kind, indices):
    source = getattr(Nexmark(1 << 50), kind)()
    alone = [source.generate(np.array([index])) for index in indices]
    assert source.generate(np.array(indices)) == pa.Table.from_batches(alone).combine_chunks().to_batches()[0]


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 50, 51, 53, 54, 100, 149])
def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_are_bids(count):
    made = Nexmark(count, per_second=1_000_000)
    offsets = np.arange(count) % 50
    wanted = [np.sum(offsets == 0), np.sum((offsets >= 1) & (offsets < 4)), np.sum(offsets >= 4)]
    assert [made.persons().count, made.auctions().count, made.bids().count] == wanted
    times = [
        getattr(made, kind)().generate(np.arange(n)).column("date_time") for kind, n in zip(KINDS, wanted, strict=True)
    ]
    micros = np.sort(np.concatenate([column.cast(pa.int64()).to_numpy() for column in times]))
    assert (micros - np.datetime64("2015-07-15", "us").astype(np.int64) == np.arange(count)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_of_some_columns_gives_the_same_values(kind):
    index, made = np.arange(500), Nexmark(100_000)
    every = getattr(made, kind)().generate(index)
    for column in COLUMNS[kind]:
        assert getattr(made, kind)(column).generate(index).column(column) == every.column(column)
    assert getattr(Nexmark(100_000, whole=True), kind)("extra").schema == every.schema


def test_half_of_the_bids_are_for_hot_auctions_and_three_quarters_of_hot_bidders():
    bids = table("bids", 500_000)
    newest = pl.int_range(pl.len()) // 46
    auctions = bids.select(((newest * 3 + 2) // 100 * 100 + 1_000 == pl.col("auction")).mean()).item()
    bidders = bids.select((newest // 100 * 100 + 1_001 == pl.col("bidder")).mean()).item()
    assert auctions == pytest.approx(0.5, abs=0.02)
    assert bidders == pytest.approx(0.75, abs=0.01)
    hot = bids["channel"].is_in(["Apple", "Google", "Facebook", "Baidu"])
    assert hot.mean() == pytest.approx(0.5, abs=0.01)


def test_three_quarters_of_the_auctions_are_of_hot_sellers():
    newest = pl.int_range(pl.len()) // 3
    hot = table("auctions", 500_000).select((newest // 100 * 100 + 1_000 == pl.col("seller")).mean())
    assert hot.item() == pytest.approx(0.75, abs=0.02)


def test_bids_are_for_auctions_in_flight_or_soon_to_come():
    bids = table("bids").with_columns(newest=pl.int_range(pl.len()) // 46 * 3 + 2)
    assert bids.select((pl.col("auction") - 1_000 - pl.col("newest")).is_between(-200, 10).all()).item()


def test_every_digit_of_a_price_is_as_likely_as_another():
    price = table("bids", 500_000)["price"]
    assert price.min() >= 100 and price.max() < 100_000_000
    shares = [price.is_between(10**digits, 10 ** (digits + 1) - 1).mean() for digits in range(2, 8)]
    assert shares == pytest.approx([1 / 6] * 6, abs=0.01)


def test_auctions_last_as_long_as_it_takes_to_open_a_hundred_on_average():
    auctions = table("auctions", 500_000)
    length = (auctions["expires"] - auctions["date_time"]).dt.total_microseconds()
    assert length.min() >= 1_000
    assert length.mean() == pytest.approx(1_666 * 100, rel=0.05)
    assert auctions["category"].unique().sort().to_list() == [10, 11, 12, 13, 14]
    assert (auctions["reserve"] > auctions["initial_bid"]).all()


def test_ids_follow_each_other():
    assert (table("persons")["id"] == pl.int_range(1_000, 3_000, eager=True)).all()
    assert (table("auctions")["id"] == pl.int_range(1_000, 7_000, eager=True)).all()


def test_the_address_of_most_channels_tells_their_number():
    channels = table("bids", 500_000).filter(pl.col("channel").str.starts_with("channel-")).unique("channel")
    told = channels["url"].str.extract("&channel_id=(.*)$")
    assert told.is_null().mean() == pytest.approx(0.1, abs=0.02)
    assert (told.drop_nulls() == channels.filter(told.is_not_null())["channel"].str.strip_prefix("channel-")).all()
    assert (channels["url"].str.count_matches("/") == 6).all()


def test_the_clock_goes_as_fast_as_it_is_told():
    slow = table("bids", 1_000, per_second=0.5, begin="2020-02-02T12:00:00")
    assert str(slow["date_time"][0]) == "2020-02-02 12:00:08"
    assert str(slow["date_time"][46]) == "2020-02-02 12:01:48"


def test_the_tables_share_the_rate_as_they_share_the_events():
    limited = Nexmark(1_000, rate=5_000)
    assert [limited.persons().rate, limited.auctions().rate, limited.bids().rate] == [100, 300, 4_600]
    assert Nexmark(1_000).bids().rate is None


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="per_second"):
        Nexmark(10, per_second=2e6)
    with pytest.raises(ValueError, match="count"):
        Nexmark(-1)
