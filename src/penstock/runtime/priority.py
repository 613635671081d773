"""Which threads of a worker go first where processors are short.

Tasks take all that there is, for as long as there is input. Whatever else a worker does is soon done, and somebody
waits for it: a snapshot that is being written keeps what changes meanwhile in memory, a grant or a trigger holds up
others. So tasks give way a little. They lose nothing by it: the same work is done either way, only sooner.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Final

TASK_NICENESS: Final = 5
"""About a third of the weight of a thread that is not nice."""


def give_way() -> None:
    """The calling thread, from now on, and those that it starts. Only Linux has a niceness of each thread."""
    if sys.platform.startswith("linux"):
        own = threading.get_native_id()
        with contextlib.suppress(OSError):  # a system that forbids it
            os.setpriority(os.PRIO_PROCESS, own, max(TASK_NICENESS, os.getpriority(os.PRIO_PROCESS, own)))
