"""What a decider went through: a bounded log that a failed test or simulation prints, and an operator reads after an
incident."""

from __future__ import annotations

from collections import deque


class Story:
    """Keeps the last `limit` events as they came; they become text only when somebody reads them."""

    def __init__(self, limit: int = 400) -> None:
        self._events: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=limit)

    def tell(self, now: float, event: str, *details: object) -> None:
        self._events.append((now, event, details))

    def lines(self, about: str = "") -> list[str]:
        """Oldest first; with `about`, only the lines that mention it."""
        lines = [
            f"{now:12.3f}  {event}  {' '.join(map(str, details))}".rstrip() for now, event, details in self._events
        ]
        return [line for line in lines if about in line]

    def __str__(self) -> str:
        return "\n".join(self.lines())
