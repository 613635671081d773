"""A driver program of its own: runs the accounts pipeline and tells, as lines of JSON, what happens.

    python -m tests.spark.support.driver aligned=/data/one unaligned=/data/two

runs two jobs, one after the other, each in its checkpoint mode and directory. A job goes on until a file `stop` appears
in its directory; then it is drained. Started again with the same directory, it continues.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.support import accounts

import penstock as ps

_PATIENCE = 120.0
_TICK = 0.02


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="+", help="mode=directory")
    parser.add_argument("--master", help="a session of our own on this master, instead of the embedded one")
    parser.add_argument("--rate", type=float, default=3_000)
    parser.add_argument("--spares", type=int, default=0)
    return parser.parse_args()


def user_session(master: str) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "2",
    }
    builder = SparkSession.builder.appName("accounts").master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def pipeline(mode: str, directory: Path, spark: SparkSession | None, options: argparse.Namespace) -> ps.Pipeline:
    made = ps.Pipeline(
        "accounts",
        parallelism=2,
        spares=options.spares,
        spark=spark,
        checkpoints=ps.Checkpoints(directory / "checkpoints", every="150ms", mode=mode),
        restart=ps.restart.fixed_delay(0, attempts=100),
    )
    return accounts.build(made, ps.sinks.Files(directory / "accounts"), rate=options.rate)


def watch(job: Any, mode: str, stop: Path) -> ps.JobResult:
    """Tells of every new state and checkpoint."""
    told = None
    while not job.done(_TICK):
        status = job.status()
        if (status.state, status.completed_checkpoints, status.restarts) != told:
            told = (status.state, status.completed_checkpoints, status.restarts)
            say(
                "progress",
                mode=mode,
                state=status.state,
                checkpoints=status.completed_checkpoints,
                restarts=status.restarts,
                workers=list(job.workers().values()),
            )
        if stop.exists():
            return job.stop(timeout=_PATIENCE)
    return job.wait()


def main() -> None:
    options = arguments()
    say("started", pid=os.getpid())
    try:
        spark = user_session(options.master) if options.master else None
        for mode, _, directory in (job.partition("=") for job in options.jobs):
            job = pipeline(mode, Path(directory), spark, options).start()
            result = watch(job, mode, Path(directory, "stop"))
            say("finished", mode=mode, restarts=result.restarts)
    except Exception as error:
        say("failed", kind=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
