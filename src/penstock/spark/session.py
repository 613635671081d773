"""The Spark session that a job runs on: the user's, or an embedded local one."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

_LOCK: Final = threading.Lock()
_MINIMUM_SLOTS: Final = 32
"""Local slots are only permissions to run, so the embedded session has enough of them for several jobs and spares."""
_TASK_FAILURES: Final = 8
"""How often Spark replaces one worker before it gives the whole Spark job up and we submit it again. Few enough for an
error that comes every time (a module that cannot be imported) to reach the user within seconds."""


class JavaMissing(RuntimeError):
    """Spark needs Java and there is none."""


def session_for(slots: int, given: SparkSession | None) -> SparkSession:
    """The given session, else the active one, else an embedded one that is made now and lives as long as the
    process."""
    if given is not None:
        return given
    with _LOCK:
        active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if active is not None and active._jsc is not None and not active.sparkContext._jsc.sc().isStopped():
            return active
        return embedded_session(slots)


def embedded_session(slots: int) -> SparkSession:
    check_java()
    # Workers are to run in this environment, not with whatever python3 the PATH leads to.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    scratch = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    builder = SparkSession.builder.appName("penstock").master(f"local[{max(slots, _MINIMUM_SLOTS)},{_TASK_FAILURES}]")
    for key, value in _embedded_settings(scratch).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # What goes wrong reaches the user as an exception; a lost task would only add a page of Java.
    session.sparkContext.setLogLevel("FATAL")
    return session


def _embedded_settings(scratch: str) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
        "spark.local.dir": str(Path(scratch, "local")),
        "spark.python.daemon.module": "penstock.spark.daemon",
        # A worker does no Spark I/O for as long as the job runs.
        "spark.python.worker.killOnIdleTimeout": "false",
        "spark.speculation": "false",
        # The JVM only hosts: it need not optimise itself for hours of work.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    }


def check_java() -> None:
    """Before Spark's own message, which does not say what to do."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java.exe" if os.name == "nt" else "java")
        if java.exists():
            return
        raise JavaMissing(
            f"JAVA_HOME is {home}, but there is no {java}. Point JAVA_HOME to a Java 17 or newer installation, "
            "or unset it to use the java on the PATH."
        )
    if shutil.which("java") is None:
        raise JavaMissing(
            "Spark needs Java 17 or newer, and neither JAVA_HOME nor the PATH leads to one. Install it "
            "(Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
        )
