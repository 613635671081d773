"""The demo's live terminal view."""

from __future__ import annotations

from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.core.statistics import CheckpointStatistics
from penstock.demo.orders import Verdict

_SHOWN = 6


class Watcher(Protocol):
    def say(self, line: str) -> None: ...

    def update(self, job: Any, committed: int) -> None: ...

    def verdict(self, verdict: Verdict) -> None: ...


class Nothing:
    """For machines: they get the result as JSON."""

    def say(self, line: str) -> None: ...

    def update(self, job: Any, committed: int) -> None: ...

    def verdict(self, verdict: Verdict) -> None: ...


class View:
    """Progress, workers and the last checkpoints, redrawn in place; what happened scrolls above."""

    def __init__(self, records: int):
        self._console = Console()
        self._progress = Progress(
            TextColumn("committed records"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._bar = self._progress.add_task("records", total=records)
        self._live = Live(self._progress, console=self._console, refresh_per_second=8)
        self._incidents = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        self._console.print(line)

    def update(self, job: Any, committed: int) -> None:
        status = job.status()
        self._progress.update(self._bar, completed=committed)
        for incident in job.incidents()[self._incidents :]:
            if incident.restarted_ms is not None:
                self._incidents += 1
                outage = incident.restarted_ms - incident.detected_ms
                self.say(f"Recovered {outage} ms after the loss was noticed: {incident.reason}")
        facts = (
            f"{status.state}   attempt {status.attempt}   workers {len([w for w in status.workers if w])}"
            f" + {len(status.spares)} spare   checkpoints {status.completed_checkpoints}"
        )
        self._live.update(Group(Panel(facts), self._progress, _checkpoints(job.checkpoints()[-_SHOWN:])))

    def verdict(self, verdict: Verdict) -> None:
        if verdict.exact:
            self.say(f"[bold green]Exactly once:[/] all {verdict.rows:,} committed rows equal the exact answer.")
        else:
            self.say(f"[bold red]Not exact:[/] {'; '.join(verdict.problems)}")


def _checkpoints(last: list[CheckpointStatistics]) -> Table:
    table = Table("checkpoint", "status", "duration", "state", "in flight", box=None)
    for c in last:
        table.add_row(
            str(c.checkpoint),
            str(c.cause or c.status),
            f"{c.duration_ms:.0f} ms",
            f"{c.state_bytes / 1e3:.0f} kB",
            f"{c.in_flight_bytes / 1e3:.0f} kB" if c.unaligned else "-",
        )
    return table
