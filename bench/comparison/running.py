"""Runs the cases of a comparison one after another, and notes what came of each."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from .cases import LOAD_OF_LATENCY, Case, Workload
from .environments import NoEnvironment
from .processes import Ended, run
from .results import Results, Run
from .systems import Settings, command, timeout

Say = Callable[[str], None]


def measure(round: int, case: Case, settings: Settings, results: Results, say: Say) -> Run:
    """Never raises for what a system does wrong: the others are to be measured all the same."""
    try:
        with tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as scratch:
            started = command(case, settings, Path(scratch), _full_load(case, results), say)
            # What a system leaves in the directory of temporary files goes with the scratch directory.
            ended = run(started, timeout=timeout(settings), say=say, environment={"TMPDIR": scratch})
    except (NoEnvironment, ValueError, OSError) as error:
        return Run(round, case, failure=str(error))
    return _outcome(round, case, ended)


def _outcome(round: int, case: Case, ended: Ended) -> Run:
    seconds = ended.seconds
    if ended.code is None:
        return Run(round, case, failure=f"not done after {seconds:.0f} s\n{ended.errors}", seconds=seconds)
    if ended.code:
        # The last line of a traceback says what went wrong; the rest comes after it for those who look.
        last = next((line for line in reversed(ended.errors.splitlines()) if line.strip()), "it said nothing")
        return Run(round, case, failure=f"{last.strip()}\n{ended.errors}", seconds=seconds)
    start = ended.output.find("{")
    try:
        figures = json.loads(ended.output[start:])
    except ValueError:
        return Run(round, case, failure=f"no figures in what it printed\n{ended.output[-2000:]}", seconds=seconds)
    return Run(round, case, figures=figures, seconds=seconds)


def _full_load(case: Case, results: Results) -> float | None:
    """Events per second, as far as it was measured in this comparison."""
    told_by = LOAD_OF_LATENCY.get(case.system) if case.workload is Workload.LATENCY else None
    rates = results.rates(told_by) if told_by else []
    return statistics.median(rates) if rates else None
