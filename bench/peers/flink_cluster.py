"""A standalone Flink cluster out of the `apache-flink` package: one job manager, one task manager, in the foreground.

Both are children of this process, so that whoever ends it ends them too, and nothing is left to scripts with pid files.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0

SETTINGS = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.bind-host": "localhost",
    "jobmanager.memory.process.size": "1600m",
    "taskmanager.bind-host": "localhost",
    "taskmanager.host": "localhost",
    "rest.address": "localhost",
    "rest.bind-address": "localhost",
    # The collector that is made for throughput: nothing here asks for short pauses.
    "env.java.opts.taskmanager": "-XX:+UseParallelGC",
    # Figures are read four times a second, and must not be older than that.
    "metrics.fetcher.update-interval": "200",
    "web.checkpoints.history": "1000",
    # A busy machine is no reason to lose a worker.
    "heartbeat.timeout": "50000",
    "execution.checkpointing.incremental": "true",
}


class Cluster:
    """`with Cluster(home, scratch, slots, memory, managed) as cluster: cluster.submit([...])`

    `home`: the pyflink package. `managed`: the share of memory that is not the heap (RocksDB and Python use it).
    """

    def __init__(self, home: Path, scratch: Path, slots: int, memory: str, managed: float) -> None:
        self._home, self._scratch = home, scratch
        self._port = _free_port()
        self._conf = scratch / "conf"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._settings = SETTINGS | {
            "rest.port": str(self._port),
            "jobmanager.rpc.port": str(_free_port()),
            "taskmanager.numberOfTaskSlots": str(slots),
            "taskmanager.memory.process.size": memory,
            "taskmanager.memory.managed.fraction": str(managed),
            "execution.checkpointing.dir": (scratch / "checkpoints").as_uri(),
            "io.tmp.dirs": str(scratch / "tmp"),
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
        }

    def __enter__(self) -> Cluster:
        self._write_settings()
        for script in ("jobmanager.sh", "taskmanager.sh"):
            log = (self._scratch / f"{script}.log").open("wb")
            command = [str(self._home / "bin" / script), "start-foreground"]
            self._processes.append(
                subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_up():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                self._stop()
                raise RuntimeError(f"the Flink cluster did not start\nIts logs end in:\n{self.logs()}")
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def submit(self, program: list[str]) -> str:
        """Submits a program (`[jar, argument, ...]` or `["-py", script, ...]`) and returns the job's id."""
        command = [str(self._home / "bin" / "flink"), "run", "-d", *program]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        words = done.stdout.split("JobID ")
        if len(words) < 2:
            raise RuntimeError(f"Flink did not take the job:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return words[-1].split()[0]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://localhost:{self._port}{path}", timeout=20) as response:
            return json.load(response)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._scratch.glob("*.log")))

    def _write_settings(self) -> None:
        self._conf.mkdir(parents=True)
        for directory in ("tmp", "checkpoints", "log"):
            (self._scratch / directory).mkdir()
        for path in (self._home / "conf").glob("log4j*.properties"):
            shutil.copy(path, self._conf)
        opens = next(
            line.partition("all:")[2].strip()
            for line in (self._home / "conf" / "config.yaml").read_text().splitlines()
            if line.strip().startswith("all:")
        )
        lines = [f"{key}: {value}" for key, value in ({"env.java.opts.all": opens} | self._settings).items()]
        (self._conf / "config.yaml").write_text("\n".join(lines) + "\n")

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "FLINK_HOME": str(self._home),
            "FLINK_CONF_DIR": str(self._conf),
            "FLINK_LOG_DIR": str(self._scratch / "log"),
            # Python in the JVM's own threads does not find the packages of a virtual environment by itself.
            "PYTHONPATH": str(self._home.parent),
        }

    def _is_up(self) -> bool:
        try:
            return int(self.get("/overview")["taskmanagers"]) == 1
        except OSError:
            return False

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:  # one that is deep in garbage collection does not listen
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
