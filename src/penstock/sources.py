"""Where records come from: `p.source(ps.sources.Generator(...))`."""

from __future__ import annotations

from penstock.connectors.files_source import Files
from penstock.connectors.generator import Generator

__all__ = ["Files", "Generator"]
