"""Where records go: `stream.sink(ps.sinks.Collect())`."""

from __future__ import annotations

from penstock.connectors.collect import Collect
from penstock.connectors.discard import Discard
from penstock.connectors.files_sink import Files

__all__ = ["Collect", "Discard", "Files"]
