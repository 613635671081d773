"""Clusters whose executors are processes of their own: killed, they are replaced, and the output stays exact."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.spark.support.jobs import pause, sent, wait_until
from tests.spark.support.processes import PATIENCE, Driver, Marked, ancestors, spark_home

pytestmark = pytest.mark.timeout(600)
EXECUTOR = "CoarseGrainedExecutorBackend"


def kill_an_executor(driver: Driver, random: Random) -> None:
    """One that hosts a worker: Spark may have put both into the same."""
    executors = set(driver.run.living(EXECUTOR))
    hosts = {pid for worker in driver.events[-1]["workers"] for pid in ancestors(worker) if pid in executors}
    assert hosts, driver.story()
    assert sent(random.choice(sorted(hosts)), signal.SIGKILL)


def test_killed_executors_of_a_local_cluster_cost_nothing(drive: Callable[..., Driver], tmp_path: Path) -> None:
    random = Random(4)
    modes = ("aligned", "unaligned", "adaptive", "at_least_once")
    home = spark_home(tmp_path / "spark")
    driver = drive(*modes, options=("--master", "local-cluster[2,2,1024]"), spark_home=home)
    for mode in modes:
        driver.wait_for_checkpoints(random.randint(1, 4), mode=mode)
        pause(random, 0.3)
        kill_an_executor(driver, random)
        restarted = driver.wait_for_checkpoints(0, mode=mode, restarts=1)
        driver.wait_for_checkpoints(restarted["checkpoints"] + 1, mode=mode, restarts=1)
        assert driver.stop(mode) == []


class StandaloneCluster:
    """A master and a worker of Spark's own cluster manager, on loopback."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.run = Marked()
        self._home = spark_home(directory / "spark")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        self._start("master.Master", *where, "--port", str(port))
        work = ("--cores", "2", "--memory", "2g", "--work-dir", str(directory / "work"))
        self._start("worker.Worker", *where, *work, self.master)
        wait_until(lambda: "with 2 cores" in self._log("master.Master"), lambda: self._log("master.Master"), PATIENCE)

    def _start(self, name: str, *arguments: str) -> None:
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        with (self._directory / f"{name}.log").open("wb") as log:
            subprocess.Popen(command, env=self.run.environment(self._home), stdout=log, stderr=log)

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def close(self) -> None:
        self.run.kill_all()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_a_job_runs_on_a_standalone_cluster(drive: Callable[..., Driver], standalone: StandaloneCluster) -> None:
    driver = drive("adaptive", options=("--master", standalone.master))
    driver.wait_for_checkpoints(2)
    assert driver.stop() == []
