"""Keeps pandas out of workers that have no use for it.

Arrow loads pandas with the first array that is made, only to be able to tell whether it is given something of it: 22 MB
in every worker, and a fifth of what a daemon takes to start. While the daemon loads Penstock there is no pandas, and
Arrow does not look for it again by itself. Whoever imports it later gets it, and Arrow is told then.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PANDAS = "pandas"


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """While something is loaded. Does nothing if pandas is there already."""
    if _PANDAS in sys.modules:
        yield
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        import pyarrow as pa

        pa.array([0])  # now it believes that there is none
        yield
    finally:
        sys.meta_path[sys.meta_path.index(hidden)] = _Announced()


class _Hidden(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _PANDAS:
            raise ModuleNotFoundError(f"No module named {_PANDAS!r} while Penstock is loaded", name=_PANDAS)
        return None


class _Announced(MetaPathFinder):
    """Finds pandas as others do, once, and tells Arrow of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PANDAS:
            return None
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(_PANDAS)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader)
        return spec


class _Telling(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # which others ask for more than this
        self._loader.exec_module(module)
        import pyarrow as pa

        pa.array([0]).to_pandas()
