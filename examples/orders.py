"""Running totals per customer, from Parquet files to Parquet files, exactly once.

    python examples/orders.py INPUT_DIRECTORY OUTPUT_DIRECTORY CHECKPOINT_DIRECTORY

Stop it with Ctrl-C or kill it, start it again: it goes on from its last checkpoint.
"""

from __future__ import annotations

import sys

import polars as pl

import penstock as ps


def pipeline(orders: str, totals: str, checkpoints: str) -> ps.Pipeline:
    p = ps.Pipeline("orders", parallelism=2, checkpoints=ps.Checkpoints(checkpoints, every="1s"))
    (
        p.source(ps.sources.Files(orders, format="parquet"), uid="orders")
        .filter(pl.col("amount") > 100)
        .key_by("customer")
        .reduce(n=ps.count(), total=ps.sum("amount"), uid="totals")
        .sink(ps.sinks.Files(totals, format="parquet"), uid="totals-files")
    )
    return p


if __name__ == "__main__":
    print(pipeline(*sys.argv[1:4]).run())
