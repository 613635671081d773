"""Working directories: removed when they are let go, and by the next process where nobody could let go."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.state.rocks.workdir import Workdir, workdir

HOLD = """
import sys
from penstock.state.rocks.workdir import Workdir
held = Workdir(sys.argv[1])
held.new("database").mkdir()
print("ready", flush=True)
sys.stdin.read()
"""


def holder(base: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def left(base: Path) -> list[str]:
    return sorted(path.name for path in base.glob("penstock-rocksdb-*/*"))


def test_a_directory_goes_with_its_last_holder(tmp_path: Path) -> None:
    held = Workdir(str(tmp_path))
    held.new("database").mkdir()
    assert len(left(tmp_path)) == 2
    del held
    gc.collect()
    assert left(tmp_path) == []


def test_a_process_has_one_directory_for_all_its_databases(tmp_path: Path) -> None:
    first, second = workdir(str(tmp_path)), workdir(str(tmp_path))
    assert first is second
    assert first.new("database") != second.new("database")


def test_the_directory_of_a_killed_process_is_removed_by_the_next_one_and_no_living_one_is(tmp_path: Path) -> None:
    living, killed = holder(tmp_path), holder(tmp_path)
    of_both = left(tmp_path)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert left(tmp_path) == of_both
    own = Workdir(str(tmp_path))
    remaining = left(tmp_path)
    assert len(remaining) == 4
    assert len(set(remaining) & set(of_both)) == 2
    _, _ = living.communicate("")
    assert len(left(tmp_path)) == 2
    del own
