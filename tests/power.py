"""A disk that forgets: what is left of a folder if the power fails after any call that changes the disk.

By the letter of POSIX a file's data stay from fsync(2) of the file on, and a name from fsync(2) of its
directory on. A disk may keep more. So the power fails after each call in three ways: only what was synced
stays, every name stays but no data that was not synced, or everything stays.
"""

import contextlib
import io
import os
import pathlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("replace", "rename", "mkdir", "unlink", "rmdir", "truncate", "ftruncate", "fsync")
Disk = dict[str, bytes | None]
"""Path below the folder -> a file's data; None for a directory."""


class ForgetfulDisk:
    """Follows what this process syncs below a folder. check: called with each disk that may be left.

    calls: how many changed the disk. ignored: names of folders that other processes write to.
    """

    def __init__(self, root: Path, check: Callable[[Disk], None], ignored: tuple[str, ...] = ()) -> None:
        """All that is in the folder now is on disk."""
        self.root, self.calls, self._check, self._ignored = root, 0, check, ignored
        self._held: dict[int, int] = {}  # inode -> a descriptor, so that the number is not used again
        self._data: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._is_paused = False
        for path in (root, *root.rglob("*")):
            self._sync(path)

    def follow(self, patch: pytest.MonkeyPatch) -> None:
        """Follow calls of `os`, and files that are opened for writing, as long as the patch lasts."""
        for name in CHANGES:
            patch.setattr(os, name, self._followed(getattr(os, name)))
        opened = self._followed(io.open)
        for place in ("io.open", "builtins.open"):
            patch.setattr(place, opened)
        patch.setattr(pathlib.io, "open", opened)  # type: ignore[attr-defined]

    def _followed(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            done = real(*arguments, **more)
            if self._is_paused or (real.__name__ == "open" and not set(done.mode) & set("wax+")):
                return done
            if real.__name__ == "fsync":
                with self._paused():
                    self._sync(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            self.fail()
            return done

        return call

    def fail(self) -> None:
        """Check every disk that may be left if the power fails now."""
        self.calls += 1
        with self._paused():
            for disk in (
                dict(self._synced("", self.root.stat().st_ino)),
                dict(self._seen(lambda path: self._data.get(path.stat().st_ino, b""))),
                dict(self._seen(Path.read_bytes)),
            ):
                self._check(disk)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._held.values():
            os.close(descriptor)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _sync(self, path: Path) -> None:
        """Keep what is at a path: data, or names."""
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            self._names[self._hold(path)] = {inner.name: self._hold(inner) for inner in self._inside(path)}
        else:
            self._data[self._hold(path)] = path.read_bytes()

    def _hold(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        about = os.fstat(descriptor)
        if about.st_ino in self._held:
            os.close(descriptor)
        else:
            self._held[about.st_ino] = descriptor
        return about.st_ino

    def _inside(self, path: Path) -> list[Path]:
        return sorted(
            inner for inner in path.iterdir() if not inner.is_symlink() and inner.name not in self._ignored
        )

    def _synced(self, place: str, folder: int) -> Iterator[tuple[str, bytes | None]]:
        for name, inode in self._names.get(folder, {}).items():
            if stat.S_ISDIR(os.fstat(self._held[inode]).st_mode):
                yield f"{place}{name}", None
                yield from self._synced(f"{place}{name}/", inode)
            else:
                yield f"{place}{name}", self._data.get(inode, b"")

    def _seen(
        self, data: Callable[[Path], bytes], folder: Path | None = None
    ) -> Iterator[tuple[str, bytes | None]]:
        for path in self._inside(folder or self.root):
            yield str(path.relative_to(self.root)), None if path.is_dir() else data(path)
            if path.is_dir():
                yield from self._seen(data, path)


def laid_out(disk: Disk, place: Path) -> None:
    """Write what a disk holds to a new folder."""
    place.mkdir()
    for name, data in disk.items():
        if data is None:
            (place / name).mkdir()
        else:
            (place / name).write_bytes(data)
