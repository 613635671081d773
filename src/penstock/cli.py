"""The command line. Every command says what it does as it goes, and prints one JSON object instead with `--json`.

Commands import what they need when they run, so that `penstock --help` answers at once.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

app = typer.Typer(
    name="penstock",
    help="Fault-tolerant stateful streaming on PySpark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


@app.command()
def demo(
    as_json: Json = False,
    records: Annotated[int, typer.Option(help="How many orders to process.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="Over how many seconds to spread them.")] = 15.0,
    kill: Annotated[bool, typer.Option(help="SIGKILL a worker half-way.")] = True,
) -> None:
    """Run a keyed aggregate on embedded Spark, kill a worker in the middle, and check every committed row."""
    from penstock.demo.run import Demo

    result = Demo(records=records, seconds=seconds, kill=kill, live=not as_json).run()
    if as_json:
        _print_json(result.as_dict())
    raise typer.Exit(0 if result.exactly_once else 1)


@app.command()
def verify(
    simulate: Annotated[bool, typer.Option("--simulate", help="Run whole jobs in the seeded simulation.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 200,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Replay this one seed and tell its story.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes to use; one per core by default.")] = None,
    as_json: Json = False,
) -> None:
    """Check the guarantees: random jobs, schedules, modes and crashes against independently computed answers."""
    if not simulate:
        raise typer.BadParameter("say what to verify with: --simulate", param_hint="verify")
    from penstock.simulation.command import replay, run

    ok = replay(seed, as_json) if seed is not None else run(first, seeds, processes, as_json)
    raise typer.Exit(0 if ok else 1)


@bench.command()
def backpressure(
    as_json: Json = False,
    checkpoints: Annotated[int, typer.Option(min=1, help="Checkpoints to measure in each mode.")] = 10,
    only: Annotated[str | None, typer.Option(help="One mode only, e.g. unaligned.")] = None,
) -> None:
    """Checkpoint durations under heavy backpressure, in every mode."""
    from penstock.bench.backpressure import measure, table

    figures = measure(checkpoints, only=only, say=None if as_json else typer.echo)
    if as_json:
        _print_json({mode: figure.as_dict() for mode, figure in figures.items()})
    else:
        typer.echo(table(figures))


@bench.command()
def recovery(
    as_json: Json = False,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill a worker in each set-up.")] = 5,
) -> None:
    """From the SIGKILL of a worker to the first new output, with and without a spare worker."""
    from penstock.bench.recovery import measure, table

    figures = measure(kills, say=None if as_json else typer.echo)
    if as_json:
        _print_json({name: figure.as_dict() for name, figure in figures.items()})
    else:
        typer.echo(table(figures))


def main() -> None:
    app()
