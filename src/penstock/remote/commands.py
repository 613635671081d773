"""The commands that talk to running jobs. Each finds its job, asks it one thing and tells the answer.

What takes long shows how it goes, on a terminal. Ctrl-C ends the waiting, not what was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.remote.output import Json, print_json

if TYPE_CHECKING:
    from penstock.remote.messages import Answer, Request
    from penstock.remote.registry import Running

app = typer.Typer()

Job = Annotated[str, typer.Argument(help="The name of a running job, or its checkpoint directory.")]
_POLL = 0.5
_DESCRIBING = 5.0


@app.command()
def jobs(as_json: Json = False) -> None:
    """The jobs that run on this machine, and how they are."""
    from penstock.remote.registry import running_jobs
    from penstock.remote.tables import jobs_table

    rows = [_described(running) for running in running_jobs()]
    if as_json:
        print_json({"jobs": rows})
    else:
        typer.echo(jobs_table(rows))


@app.command()
def checkpoints(
    job: Annotated[str, typer.Argument(help="The name of a running job, or any job's checkpoint directory.")],
    last: Annotated[int, typer.Option(min=1, help="How many to show.")] = 20,
    as_json: Json = False,
) -> None:
    """The last checkpoints of a job, also failed ones and those under way; the job need not run."""
    from penstock.remote.history import history
    from penstock.remote.tables import checkpoints_table

    entries = history(job, last)
    if as_json:
        print_json({"checkpoints": entries})
    else:
        typer.echo(checkpoints_table(entries))


@app.command()
def checkpoint(job: Job, as_json: Json = False) -> None:
    """Take a checkpoint now, and wait until it is complete."""
    from penstock.remote.messages import TakeCheckpoint

    _run(job, TakeCheckpoint(), as_json, lambda done: f"checkpoint {done['checkpoint']} is complete")


@app.command()
def savepoint(
    job: Job,
    path: Annotated[str, typer.Argument(help="A new directory, or an address such as s3://bucket/saved.")],
    aligned: Annotated[bool, typer.Option("--aligned", help="Without records in flight; slower under load.")] = False,
    as_json: Json = False,
) -> None:
    """Take a savepoint: a complete copy of the state in a directory of yours, to start from."""
    from penstock.remote.messages import TakeSavepoint
    from penstock.store.addresses import absolute_address

    where = absolute_address(path)
    _run(
        job,
        TakeSavepoint(where, aligned),
        as_json,
        lambda done: f"checkpoint {done['checkpoint']} is saved in {where}",
        savepoint=where,
    )


@app.command()
def stop(
    job: Job,
    drain: Annotated[
        bool, typer.Option(help="Process all that was read to its end: windows close, timers fire.")
    ] = True,
    savepoint: Annotated[str | None, typer.Option(help="A new directory for a savepoint of the end.")] = None,
    as_json: Json = False,
) -> None:
    """End a job in good order. Without drain it ends with a last checkpoint, to be continued as if nothing had been."""
    from penstock.remote.messages import Stop
    from penstock.store.addresses import absolute_address

    where = absolute_address(savepoint) if savepoint else None
    _run(job, Stop(drain, where), as_json, _ended, savepoint=where)


@app.command()
def cancel(job: Job, as_json: Json = False) -> None:
    """End a job at once. Started again, it goes on from its last checkpoint."""
    from penstock.remote.messages import Cancel

    _run(job, Cancel(), as_json, _ended)


@app.command()
def rescale(
    job: Job,
    parallelism: Annotated[int, typer.Argument(min=1, help="Of all operators that have none of their own.")],
    as_json: Json = False,
) -> None:
    """Go on at another parallelism, from a fresh checkpoint."""
    from penstock.remote.messages import Rescale

    def told(done: dict[str, Any]) -> str:
        return f"runs at parallelism {done['parallelism']}; nothing ran for {done['outage']:.2f} s"

    _run(job, Rescale(parallelism), as_json, told)


@app.command()
def configure(
    job: Job,
    every: Annotated[str | None, typer.Option(help='Time between two checkpoints: "5s", "1min".')] = None,
    mode: Annotated[str | None, typer.Option(help="adaptive, aligned, unaligned, ...")] = None,
    alignment_timeout: Annotated[str | None, typer.Option(help="Before barriers overtake, when adaptive.")] = None,
    timeout: Annotated[str | None, typer.Option(help="A checkpoint that takes longer is given up.")] = None,
    minimum_pause: Annotated[str | None, typer.Option(help="From the end of one to the start of the next.")] = None,
    maximum_concurrent: Annotated[int | None, typer.Option(help="How many at once.")] = None,
    tolerable_failures: Annotated[int | None, typer.Option(help="How many may fail in a row.")] = None,
    keep: Annotated[int | None, typer.Option(help="How many complete ones are retained.")] = None,
    as_json: Json = False,
) -> None:
    """Change how a running job takes its checkpoints. What is not named stays as it is."""
    from penstock.remote.client import CommandError
    from penstock.remote.messages import Configure

    named = {
        "every": every,
        "mode": mode,
        "alignment_timeout": alignment_timeout,
        "timeout": timeout,
        "minimum_pause": minimum_pause,
        "maximum_concurrent": maximum_concurrent,
        "tolerable_failures": tolerable_failures,
        "keep": keep,
    }
    options: dict[str, str | int | float] = {name: value for name, value in named.items() if value is not None}
    if not options:
        raise CommandError("nothing_to_do", "name what to change, for example --every 5s; see configure --help")

    def told(done: dict[str, Any]) -> str:
        return ", ".join(f"{name} {value}" for name, value in done["settings"].items())

    _run(job, Configure(options), as_json, told)


# ---- asking ----
def _run(job: str, request: Request, as_json: bool, told: Callable[[dict[str, Any]], str], **facts: str | None) -> None:
    import msgspec

    from penstock.remote.client import find

    running = find(job)
    answer = msgspec.to_builtins(_followed(running, request, quiet=as_json))
    del answer["type"]
    if as_json:
        print_json({"job": running.name, **answer, **{name: fact for name, fact in facts.items() if fact}})
    else:
        typer.echo(f"{running.name}: {told(answer)}")


def _followed(running: Running, request: Request, quiet: bool) -> Answer:
    """The answer; until it comes, a line on the terminal says how the job is."""
    from rich.console import Console

    from penstock.remote.client import ask

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return ask(running, request)
    asking = _Asking(running, request)
    with console.status(f"{running.name} ...") as shown:
        while not asking.over(_POLL):
            shown.update(_how_it_is(running))
    return asking.answer()


class _Asking(threading.Thread):
    """A question that is under way."""

    def __init__(self, running: Running, request: Request) -> None:
        super().__init__(name="asking", daemon=True)
        self._running, self._request = running, request
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        from penstock.remote.client import ask

        try:
            self._answer = ask(self._running, self._request)
        except Exception as error:
            self._error = error

    def over(self, timeout: float) -> bool:
        self.join(timeout)
        return not self.is_alive()

    def answer(self) -> Answer:
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


def _how_it_is(running: Running) -> str:
    view = _described(running)
    if "error" in view:
        return f"{running.name} ..."
    line = f"{running.name}: {view['state']}, {view['workers']} of {view['slots']} workers"
    for one in view["underway"]:
        line += f"; {one['purpose']} {one['checkpoint']}: {one['acknowledged']} of {one['expected']} subtasks"
        line += f", {one['duration_ms'] / 1000:.1f} s"
    return line


def _described(running: Running) -> dict[str, Any]:
    """What the registry and the job itself say; `error` if it does not answer."""
    import msgspec

    from penstock.remote.client import CommandError, ask
    from penstock.remote.messages import Describe

    facts = {"name": running.name, "directory": running.directory, "pid": running.pid, "started_ms": running.started_ms}
    try:
        view = msgspec.to_builtins(ask(running, Describe(), _DESCRIBING))
    except CommandError as error:
        return {**facts, "state": "unknown", "error": str(error)}
    del view["type"]
    return {**facts, **view}


def _ended(done: dict[str, Any]) -> str:
    newest = f", newest checkpoint {done['newest_checkpoint']}" if done["newest_checkpoint"] is not None else ""
    return f"{done['state']} after {done['seconds']:.1f} s, {done['checkpoints']} checkpoints{newest}"
