"""Workers keep the memory that batches give back."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only the C library of Linux has the settings")
def test_a_batch_that_follows_another_needs_no_new_pages() -> None:
    program = """
import resource, numpy as np, pyarrow as pa
from penstock.runtime.allocation import keep_freed_memory

keep_freed_memory()
def make():
    return pa.array(np.ones(1 << 17)).take(pa.array(np.arange(1 << 17)))
for _ in range(5):
    make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    make()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert faults < 1000, faults
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
