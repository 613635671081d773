"""The peers' own virtual environments: made on first use, and again when their requirements have changed.

Peers pin other versions of Arrow, NumPy and Py4J than Penstock needs, so none shares an environment with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BENCH = Path(__file__).parent.parent
ENVIRONMENTS = BENCH / ".envs"
_STAMP = ".requirements"
Say = Callable[[str], None]


class NoEnvironment(RuntimeError):
    """A peer could not be installed."""


def interpreter(peer: str, say: Say) -> Path:
    """The Python of a peer's environment, with everything of `peers/requirements-<peer>.txt`."""
    requirements = BENCH / "peers" / f"requirements-{peer}.txt"
    directory = ENVIRONMENTS / peer
    python, stamp = directory / "bin" / "python", directory / _STAMP
    wanted = requirements.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    say(f"installing {peer}; this takes minutes, but only once")
    _check([sys.executable, "-m", "venv", str(directory)], peer)
    _check([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)], peer)
    stamp.write_text(wanted)
    return python


def version(package: str) -> str:
    """Of a package that a peer requires, without what comes after the second point."""
    for requirements in sorted((BENCH / "peers").glob("requirements-*.txt")):
        for line in requirements.read_text().splitlines():
            name, _, pinned = line.partition("==")
            if name == package:
                return ".".join(pinned.split(".")[:2])
    raise ValueError(f"no peer requires {package}")


def _check(command: list[str], peer: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise NoEnvironment(
            f"{peer} could not be installed with Python {sys.version.split()[0]}: {' '.join(command)} ended with"
            f" {done.returncode}:\n{last}"
        )
