"""A real job, driven from other processes by `penstock` commands alone: the committed output is exact."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, wait_until
from tests.spark.support.processes import Marked

from penstock.remote.client import ask
from penstock.remote.messages import Describe, JobView
from penstock.remote.registry import running_jobs

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]


class Shell:
    """A user at the command line, with a runtime directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = str(directory / "checkpoints")
        """By which commands name it: jobs of other tests may have the same name."""
        self._run = Marked()
        self._environment = self._run.environment()
        self._app: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        self._app = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.support.app", str(self.directory), *options],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(self.runs, "the job runs and has a checkpoint", patience=2 * PATIENCE)

    def runs(self) -> bool:
        assert self._app is not None and self._app.poll() is None, "the program has ended"
        own = [job for job in running_jobs() if job.directory == self.job]
        views = [ask(job, Describe()) for job in own]
        return any(isinstance(view, JobView) and view.completed_checkpoints for view in views)

    def typed(self, *command: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-c", "from penstock.cli import main; main()", *command, "--json"],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def did(self, *command: str) -> Any:
        code, answer = self.typed(*command)
        assert code == 0, answer
        return answer

    def ended(self) -> str:
        """What the program says of its end."""
        assert self._app is not None
        output, _ = self._app.communicate(timeout=PATIENCE)
        assert self._app.returncode == 0
        return output.strip()

    def close(self) -> None:
        self._run.kill_all()
        if self._app is not None:
            self._app.wait(PATIENCE)

    def problems(self) -> list[str]:
        return accounts.problems(accounts.committed(self.directory / "accounts"))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as runtime:  # sockets need a short path
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        made = Shell(tmp_path)
        yield made
        made.close()


def test_a_job_is_watched_changed_saved_stopped_and_started_again(shell: Shell) -> None:
    shell.start()
    assert shell.did("configure", shell.job, "--every", "100ms")["settings"]["every"] == 0.1
    taken = shell.did("checkpoint", shell.job)["checkpoint"]
    saved = shell.did("savepoint", "checkpoints", "saved")
    assert saved["checkpoint"] > taken and saved["savepoint"] == str(shell.directory / "saved")
    assert shell.did("rescale", shell.job, "3")["parallelism"] == 3
    (job,) = [job for job in shell.did("jobs")["jobs"] if job["directory"] == shell.job]
    assert (job["name"], job["slots"], job["settings"]["every"]) == ("accounts", 3, 0.1)
    code, refused = shell.typed("stop", shell.job, "--no-drain", "--savepoint", "saved")
    assert code == 1 and refused["error"] == "CheckpointFailed" and "a directory of its own" in refused["message"]
    stopped = shell.did("stop", shell.job, "--no-drain", "--savepoint", "end")
    assert (stopped["state"], shell.ended()) == ("cancelled", "cancelled")
    assert {"saved", "end"} <= {path.name for path in shell.directory.iterdir()}

    code, refused = shell.typed("cancel", shell.job)
    assert code == 1 and refused["error"] == "no_such_job"
    entries = shell.did("checkpoints", "checkpoints", "--last", "1000")["checkpoints"]
    assert {"checkpoint", "savepoint"} == {entry["purpose"] for entry in entries}
    assert shell.did("inspect", "end")["savepoint"]

    shell.start("--restore", str(shell.directory / "end"), "--parallelism", "1")
    assert shell.did("stop", shell.job)["state"] == "finished"
    assert (shell.ended(), shell.problems()) == ("finished", [])


def test_a_job_under_backpressure_is_stopped_with_a_savepoint_and_goes_on_with_more_key_groups(shell: Shell) -> None:
    shell.start("--slow", "--key-groups", "2")
    shell.did("stop", shell.job, "--no-drain", "--savepoint", "saved")
    assert shell.ended() == "cancelled"
    assert shell.did("inspect", "saved")["in_flight_bytes"] > 0
    code, refused = shell.typed("rehash", "saved", "divided", "--key-groups", "1")
    assert code == 1 and refused["error"] == "CannotRehash"
    assert shell.did("rehash", "saved", "divided", "--key-groups", "64")["former_key_groups"] == 2

    shell.start("--restore", str(shell.directory / "divided"), "--key-groups", "64", "--parallelism", "3")
    assert shell.did("stop", shell.job)["state"] == "finished"
    assert (shell.ended(), shell.problems()) == ("finished", [])


@pytest.mark.slow
def test_savepoints_are_taken_while_the_job_goes_on_under_backpressure(shell: Shell) -> None:
    shell.start("--slow")
    saved = [shell.did("savepoint", shell.job, f"saved-{number}")["checkpoint"] for number in range(3)]
    assert saved == sorted(set(saved))
    assert all(shell.did("inspect", f"saved-{number}")["in_flight_bytes"] for number in range(3))
    assert shell.did("stop", shell.job)["state"] == "finished"
    assert (shell.ended(), shell.problems()) == ("finished", [])
