"""A driver program of its own: runs the accounts pipeline and tells, as lines of JSON, what happens.

It goes on until a file `stop` appears in its directory; then it drains the job and ends. Started again with the same
directory, it continues.
"""

from __future__ import annotations

import argparse
import json
import os
import time
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
    parser.add_argument("directory", type=Path)
    parser.add_argument("--master", help="a session of our own on this master, instead of the embedded one")
    parser.add_argument("--mode", default="adaptive")
    parser.add_argument("--rate", type=float, default=3_000)
    parser.add_argument("--count", type=int)
    parser.add_argument("--parallelism", type=int, default=2)
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


def pipeline(options: argparse.Namespace) -> ps.Pipeline:
    made = ps.Pipeline(
        "accounts",
        parallelism=options.parallelism,
        spares=options.spares,
        spark=user_session(options.master) if options.master else None,
        checkpoints=ps.Checkpoints(options.directory / "checkpoints", every="150ms", mode=options.mode),
        restart=ps.restart.fixed_delay(0, attempts=100),
    )
    sink = ps.sinks.Files(options.directory / "accounts")
    return accounts.build(made, sink, count=options.count, rate=options.rate)


def watch(job: Any, stop: Path) -> ps.JobResult:
    """Tells of every new state and checkpoint."""
    told = None
    while not job.done(_TICK):
        status = job.status()
        if (status.state, status.completed_checkpoints, status.restarts) != told:
            told = (status.state, status.completed_checkpoints, status.restarts)
            say(
                "progress",
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
    say("started", pid=os.getpid(), at=time.time())
    try:
        job = pipeline(options).start()
        result = watch(job, options.directory / "stop")
        say("finished", state=result.state, restarts=result.restarts, checkpoints=result.checkpoints)
    except Exception as error:
        say("failed", kind=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
