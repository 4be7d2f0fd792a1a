"""What was finished outlives a power cut after any call that changes the disk."""

import contextlib
import io
import os
import pathlib
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic import trial, write_run
from tests.cli.conftest import only_run
from zbench.record.checking import checked
from zbench.record.lines import encode
from zbench.record.store import END, TRIALS, RunDirectory, find_runs, load_records
from zbench.record.tags import load_tags
from zbench.report.site.store import Site

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


IGNORED = ("logs", "references")  # workers write there
SEARCH = ("--budget", "2trials", "--objective", "minimize:median_step_s")


def interrupted(zbench: Callable[..., object], sweep_file: Path) -> Path:
    """Return a run that was interrupted before its last repeat."""
    zbench("sweep", sweep_file)
    run = only_run()
    lines = (run / TRIALS).read_bytes().splitlines(keepends=True)
    (run / TRIALS).write_bytes(b"".join(lines[:-1]))
    (run / END).unlink()
    RunDirectory.open(run).close()
    return run


def runs(zbench: Callable[..., object], sweep_file: Path) -> None:
    """Make three runs, with a tag, a baseline and a site of the first two."""
    for number in (1, 2, 3):
        write_run(Path(f"results/ex/2026010{number}-000000-00000"), trial([0.1] * 2))
        if number == 2:
            zbench("publish", "--to", "site")
    zbench("tag", "last", "old")
    zbench("compare", "last", "--save-baseline", "main")


COMMANDS = {
    "sweep": (lambda *_: None, ("sweep", "sweep.yaml")),
    "resume": (interrupted, ("sweep", "sweep.yaml", "--resume", "last")),
    "tune": (lambda *_: None, ("tune", "sweep.yaml", *SEARCH)),
    "tag": (runs, ("tag", "last~1", "new")),
    "baseline": (runs, ("compare", "last~1", "--save-baseline", "main")),
    "publish": (runs, ("publish", "--to", "site")),
}


class Promises:
    """What must be on every disk: documents whole, runs and names of before, and every finished record."""

    def __init__(self, home: Path) -> None:
        self._place = home / "cut"
        self._known = set[object]()
        self.records: set[tuple[str, bytes]] = set()
        self.tags: dict[str, str] = {}
        self.published: set[str] = set()

    def check(self, disk: Disk) -> None:
        """AssertionError for a disk on which something is missing or damaged."""
        state = (hash(frozenset(disk.items())), len(self.records), len(self.tags), len(self.published))
        if state in self._known:
            return
        self._known.add(state)
        laid_out(disk, self._place)
        results, site = self._place / "results", self._place / "site"
        files = [file for place in (results, site) if place.is_dir() for file in checked(place)]
        assert [file.problem for file in files if file.problem] == []
        records = {(run.name, encode(record)) for run in find_runs(results) for record in load_records(run)}
        assert self.records <= records
        assert self.tags.items() <= load_tags(results).items()
        if site.is_dir():
            opened = Site(site)
            assert self.published <= {run.name for run in opened.kept()}
            opened.close()
        shutil.rmtree(self._place)


ALWAYS = ("sweep", "publish")
SOMETIMES = [pytest.param(name, marks=pytest.mark.check) for name in COMMANDS if name not in ALWAYS]


@pytest.mark.parametrize("command", [*ALWAYS, *SOMETIMES])
def test_what_was_finished_outlives_a_power_cut(zbench, sweep_file, tmp_path, monkeypatch, command):
    prepare, words = COMMANDS[command]
    prepare(zbench, sweep_file)
    promises = Promises(tmp_path.parent / f"{tmp_path.name}-cut")
    promises._place.parent.mkdir()
    if Path("results").is_dir():
        promises.tags = load_tags(Path("results"))
    append = RunDirectory.append

    def promised(run: RunDirectory, record) -> None:
        append(run, record)
        promises.records.add((run.path.name, encode(record)))
        disk.fail()

    disk = ForgetfulDisk(tmp_path, promises.check, IGNORED)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append", promised)
        disk.follow(patch)
        output = zbench(*words)
        assert output.code == 0, output.err
        assert disk.calls >= 5
        promises.tags = load_tags(Path("results"))
        documents = Path("site").glob("runs/*/*.json")
        promises.published = {f"{file.parent.name}/{file.stem}" for file in documents}
        disk.fail()
    disk.close()
