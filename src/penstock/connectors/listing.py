"""Which files a source reads: a file, everything visible below a directory, a glob, or a list of these.

Names that begin with `_` or `.` are invisible, also as directories: that is where writers keep what is not finished. A
file is taken to be complete when it is seen, so writers have to give it its name by a rename. `*` and `?` stay within a
directory, `**` crosses them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow.fs as pafs

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, order=True)
class FileVersion:
    """A file as it was when it was seen; other size or time: other content."""

    modified: int
    """Nanoseconds since the epoch."""
    path: str
    size: int


def absolute(path: str | os.PathLike[str]) -> str:
    """The same place for every process, whatever its working directory."""
    text = os.fspath(path)
    if not text:
        raise ValueError("sources.Files: the path is empty; give a file, a directory or a pattern such as in/*.parquet")
    return text if "://" in text else os.path.abspath(text)


def open_file_system(paths: Sequence[str]) -> tuple[pafs.FileSystem, list[str]]:
    """The file system that all of the paths are on, and the paths as it spells them."""
    systems: list[pafs.FileSystem] = []
    inside: list[str] = []
    for path in paths:
        base, pattern = _split(path)
        system, start = _system_of(base)
        if systems and system != systems[0]:
            raise ValueError(f"sources.Files: {paths[0]} and {path} are on different file systems; use two sources")
        systems.append(system)
        inside.append(f"{start.rstrip('/')}/{pattern}" if pattern else start)
    return systems[0], inside


def list_files(system: pafs.FileSystem, paths: Iterable[str]) -> list[FileVersion]:
    """Every visible file, each once, ordered by path. `paths` are those of `open_file_system`."""
    found = {version.path: version for path in paths for version in _list_one(system, path)}
    return [found[path] for path in sorted(found)]


def look_at(system: pafs.FileSystem, path: str) -> FileVersion | None:
    """The file as it is now; None if there is none."""
    info = system.get_file_info(path)
    return _version(info) if info.type == pafs.FileType.File else None


def _list_one(system: pafs.FileSystem, path: str) -> list[FileVersion]:
    base, pattern = _split(path)
    top = system.get_file_info(base)
    if top.type == pafs.FileType.File:
        return [_version(top)]
    if top.type != pafs.FileType.Directory:
        return []
    prefix = f"{base.rstrip('/')}/"
    matches = _translated(pattern).fullmatch if pattern else None
    return [
        _version(info)
        for info in system.get_file_info(pafs.FileSelector(base, recursive=True))
        if info.type == pafs.FileType.File
        and _is_visible(name := info.path.removeprefix(prefix))
        and (matches is None or matches(name))
    ]


def _version(info: pafs.FileInfo) -> FileVersion:
    return FileVersion(info.mtime_ns or 0, info.path, info.size)


def _is_visible(name: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in name.split("/"))


def _split(path: str) -> tuple[str, str]:
    """The directory before the first wildcard, and the pattern from there; no pattern: the path itself."""
    wildcard = _GLOB.search(path)
    if wildcard is None:
        return path, ""
    cut = path.rindex("/", 0, wildcard.start())
    return path[:cut] or "/", path[cut + 1 :]


def _system_of(base: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in base:
        return pafs.LocalFileSystem(), base
    try:
        return pafs.FileSystem.from_uri(base)
    except (OSError, ValueError) as error:
        raise ValueError(f"sources.Files: {base} cannot be opened: {error}") from error


def _translated(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over paths with `/`."""
    pieces: list[str] = []
    rest = pattern
    while rest:
        for glob, expression in (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if rest.startswith(glob):
                pieces.append(expression)
                rest = rest.removeprefix(glob)
                break
        else:
            group = re.match(r"\[(!?)([^\]/]+)\]", rest)
            if group:
                pieces.append(f"[{'^' if group[1] else ''}{group[2]}]".replace("\\", r"\\"))
                rest = rest[group.end() :]
            else:
                pieces.append(re.escape(rest[0]))
                rest = rest[1:]
    return re.compile("".join(pieces), re.DOTALL)
