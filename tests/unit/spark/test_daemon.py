"""What Penstock's Python daemon has loaded before it forks workers. In a process of its own: what is loaded stays."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, os, sys, threading, zipfile, zipimport
archive = os.path.join(sys.argv[1], "packages.zip")
with zipfile.ZipFile(archive, "w") as file:
    for name in ("one", "two"):
        file.writestr(f"{name}/__init__.py", "")
        file.writestr(f"{name}/part.py", "")
sys.path.insert(0, archive)

from penstock.spark import daemon
early = set(sys.modules)
assert not {"numpy", "pyarrow", "polars", "pyspark"} & early, "loaded before the arena is shared"

def load():
    import one.part, two.part
    from pyspark import daemon as pysparks
    pysparks.manager = lambda: None

daemon._load = load
daemon.run()
assert not any(isinstance(finder, zipimport.zipimporter) for finder in sys.path_importer_cache.values())
importlib.invalidate_caches()  # as every worker of Spark does
import one.part
from importlib import reload
reload(one.part)
"""


def test_archives_are_not_read_again_for_every_package_and_libraries_come_after_the_arena(tmp_path: object) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
