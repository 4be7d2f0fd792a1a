"""Each revision runs its own sweep file, with what lies beside it, on its own packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.launch import revisions
from zbench.launch.revisions import Checkouts, Version, version_of
from zbench.record.store import StorageError

from .conftest import git, make_their_project


@pytest.fixture
def users_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without a project: a sweep file and a note beside it, both in two revisions."""
    path = tmp_path / "theirs"
    (path / "sweeps").mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    for width in ("8", "16"):
        (path / "sweeps" / "model.txt").write_text(width)
        if width == "16":
            (path / "sweeps" / "late.yaml").write_text("name: late\n")
        (path / "sweeps" / "sweep.yaml").write_text(f"name: tiny\n# of width {width}\n")
        git(path, "add", ".")
        git(path, "commit", "-q", "-m", width)
    monkeypatch.chdir(path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return path


def test_each_revision_runs_its_own_sweep_file_and_what_lies_beside_it(users_repository: Path) -> None:
    """Seen: both sides ran HEAD's code, because the sweep's folder stands first in `sys.path`."""
    versions = [version_of(name, lambda _: None) for name in ("HEAD~1", "HEAD")]
    checkouts = Checkouts(users_repository / "sweeps" / "sweep.yaml")
    files = [checkouts.sweep_file(version) for version in versions]
    assert [file.read_text()[-2:-1] for file in files] == ["8", "6"]
    assert [(file.parent / "model.txt").read_text() for file in files] == ["8", "16"]
    late = [Checkouts(users_repository / "sweeps" / "late.yaml") for _ in versions]
    paths = [one.sweep_file(version) for one, version in zip(late, versions, strict=True)]
    assert [file.read_text() for file in paths] == ["name: late\n"] * 2
    assert (paths[0].parent / "model.txt").read_text() == "8", "the file is new, what lies beside it is not"
    bare = Version("python", Path(sys.executable))
    assert checkouts.sweep_file(bare) == users_repository / "sweeps" / "sweep.yaml"


@pytest.mark.parametrize("goal", ["/absent/data", "../outside", "../../../outside", "sweeps/model.txt"])
@pytest.mark.parametrize("place", ["data", "sweeps/data"])
def test_a_revision_with_a_symbolic_link_out_of_the_repository_is_extracted_as_it_is(
    users_repository: Path, place: str, goal: str
) -> None:
    link = users_repository / place
    link.symlink_to(goal)
    git(users_repository, "add", ".")
    git(users_repository, "commit", "-q", "-m", "a link")
    notices: list[str] = []
    version = version_of("HEAD", notices.append)
    checkouts = Checkouts(users_repository / "sweeps" / "sweep.yaml", notices.append)
    tree = checkouts.sweep_file(version).parents[1]
    if not link.resolve().is_relative_to(users_repository):
        assert (tree / place).resolve() == link.resolve()
        assert f"the symbolic link {place} leads out of the repository" in notices[-1]
        with pytest.raises(UsageError, match=f"the symbolic link {place} leads out of the repository"):
            revisions.extract("HEAD", users_repository.parent / "records", users_repository)
    else:
        assert (tree / place).readlink() == Path(goal)
        assert not any("symbolic link" in notice for notice in notices)


def test_nothing_is_written_through_a_link_of_a_revision(users_repository: Path) -> None:
    outside = users_repository.parent / "outside"
    outside.mkdir()
    (users_repository / "later").symlink_to(outside)
    git(users_repository, "add", ".")
    git(users_repository, "commit", "-q", "-m", "a link")
    version = version_of("HEAD", lambda _: None)
    (users_repository / "later").unlink()
    (users_repository / "later").mkdir()
    (users_repository / "later" / "sweep.yaml").write_text("name: later\n")
    with pytest.raises(UsageError, match="leads out of the revision; name another --sweep"):
        Checkouts(users_repository / "later" / "sweep.yaml").sweep_file(version)
    assert list(outside.iterdir()) == []


def test_a_full_disk_while_a_revision_is_built_is_no_fault_of_the_revision(users_repository: Path) -> None:
    make_their_project(users_repository)
    full = "def build_wheel(*_):\n    raise OSError(28, 'No space left on device')\n"
    (users_repository / "backend.py").write_text(full)
    git(users_repository, "add", ".")
    git(users_repository, "commit", "-q", "-m", "a project")
    with pytest.raises(StorageError, match="free some space, and run the same command again"):
        version_of("HEAD", lambda _: None)


def test_zbench_is_found_however_it_is_installed(users_repository: Path) -> None:
    """Seen after an editable install: No module named 'zbench.cli'. This test runs as zbench is installed."""
    python = version_of("HEAD", lambda _: None).python
    code = (
        "import zbench.cli.main, numpy, importlib.util as u;"
        "assert u.find_spec('torch'); print(zbench.cli.main.__file__)"
    )
    done = subprocess.run([str(python), "-P", "-c", code], capture_output=True, text=True, env={}, check=True)
    assert done.stdout.strip().endswith("zbench/cli/main.py")


def test_a_hook_of_the_running_interpreter_does_not_find_what_the_revision_has(tmp_path: Path) -> None:
    """An editable install of the working tree, by an import hook and by a path file, is not seen."""
    tree, rev, shared = (tmp_path / name for name in ("tree", "own", "shared"))
    for place, text in ((tree / "mine", "working tree"), (rev / "mine", "revision"), (tree / "other", "")):
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(f"WHERE = {text!r}\n")
    (tree / "mine" / "later.py").write_text("")
    shared.mkdir()
    hook = f"import sys; sys.meta_path.insert(0, __import__('hook').Hook({str(tree)!r}))"
    (shared / "hook.py").write_text(
        "import importlib.machinery as m\n"
        "class Hook:\n"
        "    def __init__(self, tree): self.tree = tree\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('mine'):\n"
        "            return m.PathFinder.find_spec(name, [self.tree] if path is None else "
        "[self.tree + '/mine'])\n"
    )
    (shared / "editable.pth").write_text(f"{hook}\n{tree}\n")
    revisions.share_packages(rev, [str(shared)], tree)
    code = (
        f"import site; site.addsitedir({str(rev)!r})\n"
        "import mine; print(mine.WHERE)\n"
        "for name in ('mine.later', 'other'):\n"
        "    try: __import__(name); print('found', name)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["revision", "No module named 'mine.later'", "No module named 'other'"]
