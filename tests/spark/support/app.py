"""A user's program: builds the accounts pipeline and runs it to its end, whoever ends it.

python -m tests.spark.support.app /data/job --parallelism 2 --restore /data/saved
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.spark.support import accounts

import penstock as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--key-groups", type=int, default=128)
    parser.add_argument("--restore")
    parser.add_argument("--slow", action="store_true", help="all channels are full")
    options = parser.parse_args()
    pipeline = ps.Pipeline(
        "accounts",
        parallelism=options.parallelism,
        key_groups=options.key_groups,
        checkpoints=ps.Checkpoints(options.directory / "checkpoints", every="300ms"),
    )
    sink = ps.sinks.Files(options.directory / "accounts")
    accounts.build(pipeline, sink, rate=None if options.slow else 6_000, slow=options.slow)
    print(pipeline.run(restore=options.restore).state, flush=True)


if __name__ == "__main__":
    main()
