"""One measurement of Bytewax: two processes, a snapshot of what changed into its recovery store every second.

The rate is that of the whole run, from the first event until the last one is through: Bytewax's sources may be far
ahead of its operators, and no counter says how far. It needs no warming up: nothing is compiled while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import answer, asked, run, say, values_of

HERE = Path(__file__).parent


def main() -> None:
    options = asked("Measures Bytewax.", ("w1", "w2", "w3"))
    progress, recovery = options.scratch / "progress", options.scratch / "recovery"
    progress.mkdir()
    recovery.mkdir()
    subprocess.run([sys.executable, "-m", "bytewax.recovery", str(recovery), str(options.workers)], check=True)
    say(f"measuring for {options.seconds:g} s, and until all of it is through")
    flow(options, progress, recovery)
    report(options, progress, recovery)


def flow(options: argparse.Namespace, progress: Path, recovery: Path) -> None:
    """One process per worker: threads of one process would share one interpreter lock."""
    environment = os.environ | {
        "PYTHONPATH": str(HERE),
        "BENCH_WORKLOAD": options.workload,
        "BENCH_KEYS": str(options.keys),
        "BENCH_VALUES": str(values_of(options.workload)),
        "BENCH_WORKERS": str(options.workers),
        "BENCH_SECONDS": str(options.seconds),
        "BENCH_PROGRESS": str(progress),
    }
    addresses = ";".join(f"127.0.0.1:{port}" for port in free_ports(options.workers))
    start = [sys.executable, "-m", "bytewax.run", "bytewax_flow:flow", "-a", addresses]
    # Snapshots every second; those that are superseded are deleted at once.
    start += ["-r", str(recovery), "-s", "1", "-b", "0"]
    processes = [
        subprocess.Popen([*start, "-i", str(number)], env=environment, cwd=HERE) for number in range(options.workers)
    ]
    failed = [process.wait() for process in processes]
    if any(failed):
        raise RuntimeError(f"the processes ended with {failed}")


def report(options: argparse.Namespace, progress: Path, recovery: Path) -> None:
    sources = [read(path) for path in progress.glob("source-*")]
    ends = [read(path)[-1]["at"] for path in progress.glob("sink-*")]
    if len(sources) != options.workers or len(ends) != options.workers:
        raise RuntimeError(f"of {options.workers} workers, {len(sources)} have read and {len(ends)} have ended")
    events = sum((lines[-1]["index"] - lines[0]["index"]) // options.workers for lines in sources)
    seconds = max(ends) - min(lines[0]["at"] for lines in sources)
    # An epoch ends with its snapshot; how long that then takes to be durable is told nowhere.
    snapshots = min(sum("snapshot" in line for line in lines) for lines in sources)
    size = sum(path.stat().st_size for path in recovery.iterdir())
    answer(options, events / seconds, (), size, checkpoints=snapshots)


def read(path: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


if __name__ == "__main__":
    run(main)
