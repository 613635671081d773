"""How commands print for machines, and how they show to people that they go on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """On a terminal: how much of how much is done. What is yielded is told both."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done, all: None
        return
    with Progress(console=console, transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, all: shown.update(task, completed=done, total=all)
