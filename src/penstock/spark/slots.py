"""How many tasks a Spark cluster can run at once, and whether that is enough for a job."""

from __future__ import annotations

import os
import re

from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

_LOCAL = re.compile(r"local(?:\[(?P<slots>\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<workers>\d+)\s*,\s*(?P<cores>\d+)\s*,\s*\d+\s*\]")


class TooFewSlots(ValueError):
    """The cluster cannot run all workers of the job at the same time."""


def check_slots(spark: SparkSession, parallelism: int, spares: int) -> None:
    """All workers of a job run at the same time, so each needs a slot of its own. Where Spark may still grow, nothing
    is said here: then the registration timeout tells."""
    master = str(spark.sparkContext.master)
    offered = offered_slots(master, spark.sparkContext.getConf())
    needed = parallelism + spares
    if offered is None or needed <= offered:
        return
    spare_text = f" ({parallelism} for its parallelism, {spares} spare)" if spares else ""
    raise TooFewSlots(
        f"the job needs {needed} slots{spare_text}, the cluster offers {offered}: lower parallelism"
        f"{' or spares' if spares else ''}, or give Spark more ({_how(master)})"
    )


def offered_slots(master: str, conf: SparkConf) -> int | None:
    """None where it is not fixed."""
    cpus = max(1, int(conf.get("spark.task.cpus", "1") or 1))
    if match := _LOCAL.fullmatch(master):
        slots = match["slots"]
        return (os.cpu_count() or 1 if slots == "*" else int(slots or 1)) // cpus
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match["workers"]) * (int(match["cores"]) // cpus)
    cores, instances = conf.get("spark.executor.cores"), conf.get("spark.executor.instances")
    dynamic = (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true"
    if dynamic or cores is None or instances is None:
        return None
    return int(instances) * (int(cores) // cpus)


def _how(master: str) -> str:
    if master.startswith("local-cluster"):
        return "local-cluster[workers,cores,memory]"
    if master.startswith("local"):
        return "a session with master local[N] or, without a session, the embedded one"
    return "spark.executor.instances and spark.executor.cores"
