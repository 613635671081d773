"""One embedded Spark session serves all tests of this process that do not say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.support.processes import Driver

from penstock.spark.session import session_for


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark() -> Any:
    return session_for(8, None)


@pytest.fixture
def start(spark: Any) -> Iterator[Callable[..., Any]]:
    """Starts pipelines; whatever becomes of the test, nothing of them stays behind."""
    jobs = []

    def start_pipeline(pipeline: Any, **options: Any) -> Any:
        jobs.append(pipeline.start(**options))
        return jobs[-1]

    yield start_pipeline
    for job in jobs:
        if not job.done():
            job.cancel()


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts drivers, all with the same directory; their processes do not outlive the test."""
    made: list[Driver] = []

    def start_driver(*modes: str, **options: Any) -> Driver:
        made.append(Driver(tmp_path / "drivers", *modes, **options))
        return made[-1]

    yield start_driver
    for driver in made:
        driver.close()
