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


Where = Annotated[str, typer.Argument(help="A checkpoint directory, or <directory>/checkpoints/<number>.")]
Number = Annotated[int | None, typer.Option("--checkpoint", help="The checkpoint; the newest complete one by default.")]


@app.command()
def inspect(path: Where, checkpoint: Number = None, as_json: Json = False) -> None:
    """Show what is in a checkpoint: sizes by operator and state, skew, files, layers, figures."""
    from penstock.observe.inspection import inspect as look
    from penstock.observe.inspection import shown
    from penstock.observe.opening import open_checkpoint

    found = look(open_checkpoint(path, checkpoint))
    if as_json:
        _print_json(found)
    else:
        typer.echo(shown(found))


@app.command()
def diff(
    path: Where,
    program: Annotated[str, typer.Argument(help="The program, which is run up to where it starts its pipeline.")],
    checkpoint: Number = None,
    as_json: Json = False,
) -> None:
    """Say whether a program would restore from a checkpoint, per operator and state."""
    from penstock.graph.diff import diff as compare
    from penstock.observe.opening import open_checkpoint, pipeline_of

    found = compare(open_checkpoint(path, checkpoint).record, pipeline_of(program).graph())
    if as_json:
        differences = [one.as_dict() for one in found.differences]
        _print_json({"restorable": found.restorable, "problem": found.problem, "states": differences})
    else:
        for one in found.differences:
            state = f".{one.state}" if one.state else ""
            typer.echo(f"{one.verdict:<12} {one.uid}{state} ({one.operator})" + (f": {one.why}" if one.why else ""))
        typer.echo(found.problem or ("restores" if found.restorable else "does not restore as it is"))
    raise typer.Exit(0 if found.restorable else 1)


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


@bench.command()
def snapshot(
    as_json: Json = False,
    keys: Annotated[int, typer.Option(min=1, help="Keys of the state.")] = 10_000_000,
    changed: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of them that changes.")] = 0.01,
    rounds: Annotated[int, typer.Option(min=1, help="How often to measure.")] = 5,
) -> None:
    """Snapshots of a large columnar state, whole and of what changed, compared with the speed of the disk."""
    from penstock.bench.snapshot import measure, table

    figures = measure(keys, changed, rounds, say=None if as_json else typer.echo)
    if as_json:
        _print_json(figures.as_dict())
    else:
        typer.echo(table(figures))


@bench.command()
def rocksdb(
    as_json: Json = False,
    memory: Annotated[str, typer.Option(help="What RocksDB may use.")] = "128MB",
    times: Annotated[float, typer.Option(min=0.1, help="The state, as a multiple of that.")] = 4.0,
    changed: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the keys that changes.")] = 0.01,
) -> None:
    """User state in RocksDB larger than its memory: memory used, throughput, incremental bytes, exact recovery."""
    from penstock.api.backends import RocksDB
    from penstock.bench.rocksdb import measure, table

    figures = measure(RocksDB(memory).settings.memory, times, changed, say=None if as_json else typer.echo)
    if as_json:
        _print_json(figures.as_dict())
    else:
        typer.echo(table(figures))
    raise typer.Exit(0 if figures.within_limit and figures.exact else 1)


def main() -> None:
    app()
