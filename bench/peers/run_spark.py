"""One measurement of Spark Structured Streaming: w1 and w2 with its own aggregation, w3 with `transformWithState`.

A micro-batch is read, processed and committed before the next one begins, so that a batch is also a checkpoint, and the
size of a batch decides how often there is one. Batches are as large here as pays (below); on two cores one then takes a
few seconds, not one, which favours Spark. A first query is thrown away: it is there for the JVM to compile what it
runs. Batches count from when the state holds every key.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import SCATTER, answer, asked, run, say, values_of
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH = {"w1": 1_000_000, "w2": 1_000_000, "w3": 20_000}
"""w1: batches of 1 M did nearly three times what batches of 100,000 did. w3: a Python call per key and batch takes the
same time in batches of any size, so they are kept to a few seconds."""
EVENTS_UNTIL_FULL = {"w2": 2_000_000, "w3": 40_000}
"""Of w1: as many as there are keys. w2: two windows are open at a time. w3 would need minutes to see every key: it is
measured while its state is still small, which favours Spark."""
_LEAST_BATCHES = 2
_PATIENCE_SECONDS = 180.0
_POLL_SECONDS = 0.25

SETTINGS = {
    "spark.driver.memory": "6g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Dlog4j2.level=ERROR",
}
ROCKSDB = {
    # transformWithState works with no other store; with its changelog it commits what changed, not whole files.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows costs a read per write.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


class Falls(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "count long, last long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count, last = self._seen.get() or (0, -1)
        for row in rows:
            count += 1
            if row.value < last:
                yield Row(key=key[0], count=count)
            last = row.value
        self._seen.update((count, last))

    def close(self) -> None: ...


def main() -> None:
    options = asked("Measures Spark Structured Streaming.", ("w1", "w2", "w3"))
    spark = session(options)
    try:
        say(f"a query to warm up with, for {options.warm:g} s")
        first = start(spark, options, "first")
        first.awaitTermination(options.warm)
        first.stop()
        say("filling the state")
        measured = start(spark, options, "measured")
        report(options, batches(options, measured))
    finally:
        spark.stop()


def session(options: argparse.Namespace) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("peer").master(f"local[{options.workers}]")
    settings = SETTINGS | {
        "spark.sql.shuffle.partitions": str(options.workers),
        "spark.local.dir": str(options.scratch / "local"),
        "spark.sql.warehouse.dir": str(options.scratch / "warehouse"),
    }
    if options.workload == "w3":
        settings |= ROCKSDB
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: SparkSession, options: argparse.Namespace, name: str) -> StreamingQuery:
    """The query, from its beginning, with a checkpoint directory of its own."""
    indices = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_BATCH[options.workload])
        .option("numPartitions", options.workers)
        .load()
    )
    i = F.col("value")
    events = indices.select(
        ((i * F.lit(SCATTER)) % F.lit(options.keys)).alias("key"),
        (i % values_of(options.workload)).alias("value"),
        F.timestamp_millis(F.floor(i / 100)).alias("ts"),
    )
    written = work(events, options.workload).writeStream.outputMode("update").format("noop")
    return written.option("checkpointLocation", str(options.scratch / f"checkpoints-{name}")).start()


def work(events: DataFrame, workload: str) -> DataFrame:
    totals = [F.count("*").alias("n"), F.sum("value").alias("total")]
    if workload == "w1":
        return events.groupBy("key").agg(*totals)
    if workload == "w2":
        timed = events.withWatermark("ts", "0 seconds")
        return timed.groupBy(F.window("ts", "10 seconds"), "key").agg(*totals)
    by_key = events.select("key", "value").groupBy("key")
    return by_key.transformWithState(Falls(), "key long, count long", "Update", "None")


def batches(options: argparse.Namespace, query: StreamingQuery) -> list[dict[str, Any]]:
    """The progress of all batches that ended in the measured time."""
    full = EVENTS_UNTIL_FULL.get(options.workload, options.keys)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    filled, since = 0, None
    while True:
        error = query.exception()
        if error is not None:
            raise RuntimeError(f"the query failed: {error}")
        done = query.recentProgress
        if since is None and sum(one["numInputRows"] for one in done) >= full:
            filled, since = len(done), time.monotonic()
            say(f"measuring for {options.seconds:g} s")
        measured = len(done) - filled
        if since is not None and time.monotonic() - since >= options.seconds and measured >= _LEAST_BATCHES:
            query.stop()
            return done[filled:]
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(done)} batches within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def report(options: argparse.Namespace, measured: list[dict[str, Any]]) -> None:
    durations = [float(one["durationMs"]["triggerExecution"]) for one in measured]
    rows = sum(one["numInputRows"] for one in measured)
    size = sum(
        path.stat().st_size for path in Path(options.scratch, "checkpoints-measured").rglob("*") if path.is_file()
    )
    per_batch = ROWS_PER_BATCH[options.workload]
    answer(options, rows / sum(durations) * 1000, durations, size, rows_per_batch=per_batch)


if __name__ == "__main__":
    run(main)
