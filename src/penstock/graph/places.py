"""Where in the user's program an operator was written."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def calling_place() -> Place:
    """The innermost line on the stack that is not Penstock's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    assert frame is not None
    return Place(frame.f_code.co_filename, frame.f_lineno)
