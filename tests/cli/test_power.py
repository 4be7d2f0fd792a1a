"""What was finished outlives a power cut after any call that changes the disk."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analysis.synthetic import trial, write_run
from tests.cli.conftest import only_run
from tests.power import Disk, ForgetfulDisk, laid_out
from zbench.record.checking import checked
from zbench.record.lines import encode
from zbench.record.store import END, TRIALS, RunDirectory, find_runs, load_records
from zbench.record.tags import load_tags
from zbench.report.site.store import Site

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
