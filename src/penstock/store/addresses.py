"""Addresses of directories, as one process tells them to another."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit


def absolute_address(address: str) -> str:
    """The same for every process, whatever its working directory is."""
    return address.rstrip("/") if urlsplit(address).scheme else str(Path(address).resolve())
