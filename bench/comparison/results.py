"""What was measured, kept in a file as it comes in, so that a comparison that was interrupted can go on."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .cases import Case, System, Variant, Workload
from .systems import Settings


@dataclass(frozen=True)
class Run:
    """One measurement of one case."""

    round: int
    case: Case
    figures: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    """Why there are no figures."""
    seconds: float = 0.0
    """How long it took, with everything around it."""


class OtherSettings(ValueError):
    """A file holds results of another comparison."""


class Results:
    """The runs of one comparison. Every `add` writes the file anew, whole: it is small."""

    def __init__(self, path: Path, settings: Settings, *, resume: bool = False) -> None:
        self._path, self._settings = path, settings
        self.runs: list[Run] = []
        if resume and path.exists():
            self._load()

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.as_dict(), indent=1))
        unfinished.replace(self._path)

    def has(self, round: int, case: Case) -> bool:
        """Whether this was measured. What failed is tried again."""
        return any(run.round == round and run.case == case and not run.failure for run in self.runs)

    def rates(self, case: Case) -> list[float]:
        """Events per second, of every round that had a result."""
        return [run.figures["events_per_s"] for run in self.runs if run.case == case and not run.failure]

    def as_dict(self) -> dict[str, Any]:
        return {
            "settings": asdict(self._settings),
            "machine": machine(),
            "runs": [asdict(run) for run in self.runs],
        }

    def _load(self) -> None:
        stored = json.loads(self._path.read_text())
        if stored["settings"] != asdict(self._settings):
            raise OtherSettings(
                f"{self._path} was measured with {stored['settings']}, asked for is {asdict(self._settings)}: give the"
                " same settings, another file, or start anew without --resume"
            )
        runs = [_run(one) for one in stored["runs"]]
        self.runs = [run for run in runs if not run.failure]


def _run(stored: dict[str, Any]) -> Run:
    case = stored.pop("case")
    known = Case(System(case["system"]), Workload(case["workload"]), Variant(case["variant"]))
    return Run(case=known, **stored)


def machine() -> dict[str, Any]:
    """What readers of a ratio want to know; nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count(), "memory_gb": round(memory / 1e9), "python": platform.python_version()}
