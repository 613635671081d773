"""Penstock, Flink, Spark Structured Streaming, Bytewax and Polars in one go on this machine, and the ratios.

    python bench/compare.py                        three rounds of everything; about an hour
    python bench/compare.py --quick                one short round, without PyFlink's other modes
    python bench/compare.py --workloads w1 --systems penstock flink --rounds 1
    python bench/compare.py --resume               goes on with what was interrupted; tries again what failed
    python bench/compare.py --resume --readme README.md --plot docs/compare.svg

Run it with Penstock's own interpreter (`make compare`), on a machine that does nothing else. Peers are installed on
first use, into `bench/.envs`. What was measured is in the file of `--json` after every single measurement.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from comparison.cases import Case, System, Workload, cases, schedule
from comparison.environments import BENCH
from comparison.plot import chart
from comparison.report import into, markdown, show
from comparison.results import OtherSettings, Results, Run
from comparison.running import measure
from comparison.summary import Summary
from comparison.systems import QUICK, Settings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROUNDS = 3


def main() -> None:
    asked = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it, what it started ends too
    settings = QUICK if asked.quick else Settings()
    if asked.seconds is not None:
        settings = replace(settings, seconds=asked.seconds)
    chosen = cases(asked.systems, asked.workloads, variants=not asked.no_variants, slow=not asked.quick)
    planned = schedule(chosen, asked.rounds or (1 if asked.quick else ROUNDS))
    console = Console()
    try:
        results = Results(asked.json, settings, resume=asked.resume)
    except OtherSettings as error:
        sys.exit(f"compare: {error}")
    left = [(round, case) for round, case in planned if not results.has(round, case)]
    try:
        with shown_progress(console, len(planned), len(planned) - len(left)) as (begin, say, done):
            for round, case in left:
                begin(round, case)
                run = measure(round, case, settings, results, say)
                results.add(run)
                done(run)
    except KeyboardInterrupt:
        console.print(f"interrupted; {asked.json} has what was measured: --resume goes on with it")
    summary = Summary(results.runs)
    show(console, summary)
    if asked.readme:
        asked.readme.write_text(into(asked.readme.read_text(), markdown(summary)))
    if asked.plot:
        asked.plot.write_text(chart(summary))
        console.print(f"\nplot: {asked.plot}", highlight=False)
    sys.exit(1 if any(run.failure for run in results.runs) else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", type=Workload, choices=list(Workload), default=list(Workload))
    parser.add_argument("--systems", nargs="+", type=System, choices=list(System), default=list(System))
    parser.add_argument("--rounds", type=int, help=f"how often to measure everything; {ROUNDS}, with --quick 1")
    parser.add_argument("--seconds", type=float, help="how long to measure, once a system is warm")
    parser.add_argument("--quick", action="store_true", help="short measurements: to see that all of it works")
    parser.add_argument("--no-variants", action="store_true", help="only the workloads as they are defined")
    parser.add_argument("--json", type=Path, default=BENCH / "results" / "compare.json", help="where results are kept")
    parser.add_argument("--resume", action="store_true", help="go on with the results in that file")
    parser.add_argument("--readme", type=Path, help="a document to write the table of ratios into, between its marks")
    parser.add_argument("--plot", type=Path, help="draw the rates, as an SVG file")
    asked = parser.parse_args()
    if asked.plot and asked.plot.suffix != ".svg":
        parser.error(f"--plot draws SVG: {asked.plot} must end in .svg")
    return asked


Begin = Callable[[int, Case], None]


@contextmanager
def shown_progress(
    console: Console, total: int, done: int
) -> Iterator[tuple[Begin, Callable[[str], None], Callable[[Run], None]]]:
    """What is run now and what it last said; a line for everything that is done, also where there is no terminal."""
    # Without markup: what systems say is full of brackets.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done)
        running = ""

        def begin(round: int, case: Case) -> None:
            nonlocal running
            running = f"round {round + 1}, {case}"
            progress.update(task, description=running)

        def say(line: str) -> None:
            progress.update(task, description=f"{running}: {line[:60]}")

        def end(run: Run) -> None:
            rate = run.figures.get("events_per_s")
            outcome = run.failure.splitlines()[0] if run.failure else f"{rate:,} events/s" if rate else "done"
            progress.console.print(f"{running}: {outcome} ({run.seconds:.0f} s)", highlight=False, markup=False)
            progress.advance(task)

        yield begin, say, end


if __name__ == "__main__":
    main()
