"""Watching and killing jobs on Spark. Every wait ends: what takes longer than `PATIENCE` is a bug."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from random import Random
from typing import Any

PATIENCE = 90.0
"""Seconds."""
_TICK = 0.01


def wait_until(condition: Callable[[], bool], what: Callable[[], object] | str, patience: float = PATIENCE) -> None:
    """For what only polling can tell. `what` was waited for, or says how things are, when it did not come true."""
    poll = threading.Event()
    for _ in range(int(patience / _TICK)):
        if condition():
            return
        poll.wait(_TICK)
    raise AssertionError(f"waited {patience:g} s in vain: {what if isinstance(what, str) else what()}")


def wait_for_checkpoints(job: Any, more: int, *, spares: int = 0) -> None:
    """Until the job has completed so many more checkpoints, and has its spares waiting."""
    goal = job.status().completed_checkpoints + more

    def reached() -> bool:
        assert not job.done(), _ending(job)
        status = job.status()
        return status.completed_checkpoints >= goal and len(status.spares) >= spares

    wait_until(reached, lambda: (job.status(), job.incidents()[-3:]))


def kill_worker(job: Any, random: Random) -> int:
    """SIGKILLs a random one of the workers that run subtasks; which process that was."""
    pid = 0

    def killed() -> bool:
        nonlocal pid
        alive = job.workers()
        running = [alive[worker] for worker in job.status().workers if worker in alive]
        if not running:
            return False
        pid = random.choice(running)
        return sent(pid, signal.SIGKILL)

    wait_until(killed, lambda: f"no worker to kill: {job.status()}")
    return pid


def sent(pid: int, signal_: signal.Signals) -> bool:
    """Whether there was such a process."""
    try:
        os.kill(pid, signal_)
    except ProcessLookupError:
        return False
    return True


def pause(random: Random, longest: float) -> None:
    """Moves what follows to a random moment. Nothing relies on how long it takes."""
    threading.Event().wait(random.uniform(0, longest))


def _ending(job: Any) -> str:
    try:
        return f"the job has ended by itself: {job.wait(0)}"
    except Exception as error:
        return f"the job has ended by itself: {error}"
