"""An executor for tests: what is submitted runs when it is waited for, or when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Later(Executor):
    def __init__(self) -> None:
        self.pending: list[_Waiting] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        waiting = _Waiting(lambda: fn(*args, **kwargs))
        self.pending.append(waiting)
        return waiting

    def run(self) -> None:
        for waiting in self.pending:
            waiting.run()
        self.pending.clear()


class _Waiting(Future[Any]):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        if not self.done():
            try:
                self.set_result(self._work())
            except BaseException as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)
