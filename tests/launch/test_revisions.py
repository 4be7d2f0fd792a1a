"""Revisions of a small repository are installed side by side and sampled by their command lines."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from analysis.synthetic import trial

from zbench.errors import TrialsFailedError, UsageError
from zbench.launch import own_packages
from zbench.launch.checkouts import Checkouts
from zbench.launch.revisions import Version, cache_directory, installer, resolve_commit, version_of
from zbench.launch.sampling import Sampler
from zbench.record import lines

BACKEND = '''
"""A build backend without requirements: zips the package, so that no test needs a network."""
import pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "zbench-0.0.0-py3-none-any.whl"
    info = "zbench-0.0.0.dist-info/"
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        for file in pathlib.Path("zbench").rglob("*.py"):
            wheel.write(file)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: zbench\\nVersion: 0.0.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
'''
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "zbench"
version = "0.0.0"
"""
COMMAND = """
import sys

if __name__ == "__main__":
    print({document!r})
    sys.exit({code})
"""


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.strip()


def commit(repository: Path, tag: str, document: object, code: int = 0) -> None:
    """Commit a zbench whose every command prints `document`."""
    text = document if isinstance(document, str) else json.dumps(document)
    (repository / "zbench" / "cli" / "main.py").write_text(COMMAND.format(document=text, code=code))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", tag)
    git(repository, "tag", tag)


def sweep_document(step_s: float) -> dict[str, object]:
    return {"schema_version": 1, "trials": [lines.jsonable(item) for item in trial([step_s])]}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    (path / "zbench" / "cli").mkdir(parents=True)
    for file in ("zbench/__init__.py", "zbench/cli/__init__.py"):
        (path / file).touch()
    (path / "backend.py").write_text(BACKEND)
    (path / "pyproject.toml").write_text(PROJECT)
    git(path, "init", "-q", "-b", "main")
    commit(path, "v1", sweep_document(0.1))
    commit(path, "v2", sweep_document(0.2))
    commit(path, "silent", "", code=70)
    commit(path, "refusing", {"trials": [], "error": {"message": "unknown key engine.x"}}, code=2)
    (path / "backend.py").write_text(
        "def build_wheel(*_):\n    raise RuntimeError('the compiler is on fire')\n"
    )
    commit(path, "broken", {})
    (path / "backend.py").write_text(BACKEND)
    git(path, "add", "backend.py")
    git(path, "rm", "-q", "-r", "--cached", "zbench/cli")
    git(path, "commit", "-q", "-m", "nocli")
    git(path, "tag", "nocli")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _here(repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_two_revisions_are_sampled_side_by_side(tmp_path: Path) -> None:
    said: list[str] = []
    versions = [version_of(tag, said.append) for tag in ("v1", "v2")]
    sampler = Sampler(tmp_path / "sweep.yaml", ["engine.zero_stage=1"])
    steps = [[r.timing.median_step_s for r in sampler.take(v) if r.timing] for v in versions]
    assert steps == [[0.1], [0.2]]
    assert [version.commit for version in versions] == [
        git(Path.cwd(), "rev-parse", tag) for tag in ("v1", "v2")
    ]
    assert len(said) == 2
    assert version_of("v1", said.append) == versions[0]
    assert len(said) == 2, "an environment that is there is used again"


def test_an_environment_sees_our_packages_and_its_own_zbench() -> None:
    python = version_of("v1", lambda _: None).python
    code = "import pydantic, torch, zbench; print(zbench.__file__)"
    done = subprocess.run([str(python), "-P", "-c", code], capture_output=True, text=True, env={}, check=True)
    assert done.stdout.startswith(str(cache_directory()))


def test_another_projects_revisions_run_with_this_zbench(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository of a user's model: its project is installed, zbench comes from the shared packages."""
    (tmp_path / "model.py").write_text("WIDTH = 7\n")
    backend = BACKEND.replace('Path("zbench").rglob("*.py")', 'Path().glob("model.py")').replace(
        "zbench-", "model-"
    )
    (tmp_path / "backend.py").write_text(backend.replace("Name: zbench", "Name: model"))
    (tmp_path / "pyproject.toml").write_text(PROJECT.replace('"zbench"', '"model"'))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zbench.launch.revisions._shared_paths", lambda: [str(repository)])
    git(repository, "checkout", "-q", "v1", "--", "zbench")
    python = version_of("HEAD", lambda _: None).python
    code = "import model, zbench; print(model.WIDTH, zbench.__file__)"
    done = subprocess.run([str(python), "-P", "-c", code], capture_output=True, text=True, env={}, check=True)
    assert done.stdout.split() == ["7", str(repository / "zbench" / "__init__.py")]


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
    found = [one.sweep_file(version) for one, version in zip(late, versions, strict=True)]
    assert [file.read_text() for file in found] == ["name: late\n"] * 2
    assert (found[0].parent / "model.txt").read_text() == "8", "the file is new, what lies beside it is not"
    bare = Version("python", Path(sys.executable))
    assert checkouts.sweep_file(bare) == users_repository / "sweeps" / "sweep.yaml"


def test_zbench_is_found_however_it_is_installed(users_repository: Path) -> None:
    """Seen after an editable install: No module named 'zbench.cli'. This test runs as zbench is installed."""
    python = version_of("HEAD", lambda _: None).python
    code = "import zbench.cli.main, torch, sys; print(zbench.cli.main.__file__)"
    done = subprocess.run([str(python), "-P", "-c", code], capture_output=True, text=True, env={}, check=True)
    assert done.stdout.strip().endswith("zbench/cli/main.py")


def test_a_hook_of_the_running_interpreter_does_not_find_what_the_revision_has(tmp_path: Path) -> None:
    """An editable install of the working tree, by an import hook and by a path file, is not seen."""
    tree, own, shared = (tmp_path / name for name in ("tree", "own", "shared"))
    for place, text in ((tree / "mine", "working tree"), (own / "mine", "revision"), (tree / "other", "")):
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
    own_packages.write(own, [str(shared)], tree)
    code = (
        f"import site; site.addsitedir({str(own)!r})\n"
        "import mine; print(mine.WHERE)\n"
        "for name in ('mine.later', 'other'):\n"
        "    try: __import__(name); print('found', name)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["revision", "No module named 'mine.later'", "No module named 'other'"]


def test_uv_installs_where_it_is_found_and_pip_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installer(Path("python"))[:3] == [sys.executable, "-m", "pip"]
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert installer(Path("python"))[:3] == [str(tmp_path / "uv"), "pip", "install"]


def test_a_repository_is_left_as_it_was(repository: Path) -> None:
    before = git(repository, "status", "--porcelain"), git(repository, "worktree", "list")
    version_of("v2", lambda _: None)
    assert (git(repository, "status", "--porcelain"), git(repository, "worktree", "list")) == before


def test_interpreters_and_environments_are_taken_as_they_are(tmp_path: Path) -> None:
    assert version_of(sys.executable, lambda _: None).python == Path(sys.executable)
    python = version_of("v1", lambda _: None).python
    found = version_of(str(python.parents[1]), lambda _: None)
    assert (found.python, found.commit) == (python, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("broken", r"broken does not build \(log: .*the compiler is on fire"),
        ("nocli", "its command line cannot be imported.*No module named 'zbench.cli'"),
        ("no-such-revision", "no such revision in this repository"),
        ("", "expected a git revision"),
        ("--upload-pack=evil", "expected a git revision"),
        ("backend.py", "is a file but no interpreter"),
    ],
)
def test_what_cannot_be_measured_gets_a_clear_message(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        version_of(text, lambda _: None)
    assert re.search(says, str(error.value), flags=re.DOTALL)


def test_outside_a_repository_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="is no git repository"):
        resolve_commit("HEAD")


@pytest.mark.parametrize(
    ("tag", "kind", "says"),
    [
        ("refusing", UsageError, r"refusing cannot run the sweep \(exit 2\): unknown key engine.x"),
        ("silent", TrialsFailedError, r"silent cannot run the sweep \(exit 70\)"),
    ],
)
def test_a_version_that_cannot_run_it(tag: str, kind: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=says):
        Sampler(tmp_path / "sweep.yaml", []).take(version_of(tag, lambda _: None))


def test_a_sample_is_one_sweep_by_the_public_command_line(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import json, os, sys
        message = json.dumps([sys.argv[1:], os.environ.get("PYTHONPATH"), os.getcwd()])
        print(json.dumps({{"trials": [], "error": {{"message": message}}}}))
        """)
    )
    stand_in.chmod(0o755)
    with pytest.raises(TrialsFailedError) as error:
        Sampler(tmp_path / "sweep.yaml", ["run.steps=4"]).take(version_of(str(stand_in), lambda _: None))
    arguments, python_path, cwd = json.loads(str(error.value).split(": ", 1)[1])
    assert arguments[:4] == ["-P", "-m", "zbench.cli.main", "sweep"]
    assert arguments[4] == str(tmp_path / "sweep.yaml")
    assert "run.steps=4" in arguments
    assert "run.repeats=1" in arguments
    assert python_path is None
    assert not Path(cwd).exists(), "the scratch directory is gone"


def test_a_sample_that_was_killed_is_taken_once_more(tmp_path: Path) -> None:
    stand_in, once = tmp_path / "python", tmp_path / "once"
    document = json.dumps(sweep_document(0.1))
    stand_in.write_text(
        f"#!/bin/sh\n[ -e {once} ] && {{ echo '{document}'; exit; }}\ntouch {once}\nkill -9 $$\n"
    )
    stand_in.chmod(0o755)
    version = version_of(str(stand_in), lambda _: None)
    assert len(Sampler(tmp_path / "sweep.yaml", []).take(version)) == 1
    stand_in.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(TrialsFailedError, match=r"exit -9"):
        Sampler(tmp_path / "sweep.yaml", []).take(version)


def test_an_interpreter_that_goes_away_is_named(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    version = version_of(str(stand_in), lambda _: None)
    stand_in.unlink()
    with pytest.raises(TrialsFailedError, match=r"cannot be run any more: .*python: No such file"):
        Sampler(tmp_path / "sweep.yaml", []).take(version)
