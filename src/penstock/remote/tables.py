"""Jobs and checkpoints as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any


def jobs_table(jobs: Sequence[dict[str, Any]]) -> str:
    if not jobs:
        return "no job of this user runs here"
    rows = [("job", "state", "since", "restarts", "newest", "completed", "failed", "process", "directory")]
    rows += [
        (
            job["name"],
            job["state"],
            _moment(job["started_ms"]),
            _shown(job.get("restarts")),
            _shown(job.get("newest_checkpoint")),
            _shown(job.get("completed_checkpoints")),
            _shown(job.get("failed_checkpoints")),
            str(job["pid"]),
            job["directory"] or "-",
        )
        for job in jobs
    ]
    return _table(rows)


def checkpoints_table(entries: Sequence[dict[str, Any]]) -> str:
    if not entries:
        return "no checkpoint was taken yet"
    rows = [("checkpoint", "triggered", "purpose", "mode", "status", "took", "state", "in flight", "why")]
    rows += [
        (
            str(entry["checkpoint"]),
            _moment(entry["triggered_ms"]),
            entry["purpose"],
            entry["mode"] + (" (overtook)" if entry["unaligned"] else ""),
            entry["status"],
            f"{entry['duration_ms']:.0f} ms",
            size(entry["state_bytes"]),
            size(entry["in_flight_bytes"]),
            _why(entry),
        )
        for entry in entries
    ]
    return _table(rows)


def size(count: int) -> str:
    """Bytes as people read them.

    >>> size(0), size(1_536_000)
    ('0 B', '1.5 MB')
    """
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _why(entry: dict[str, Any]) -> str:
    if not entry.get("cause"):
        return ""
    where = f" at {entry['subtask']}" if entry.get("subtask") else ""
    return f"{entry['cause']}{where}: {entry['reason']}"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M:%S")


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
