"""A revision, an interpreter or an environment becomes a version that can be measured, or says why not."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from zbench.analysis.settings import Settings
from zbench.app.compare import measure
from zbench.app.voice import Voice
from zbench.errors import UsageError
from zbench.launch.cache import removable
from zbench.launch.pair import Sampler
from zbench.launch.revisions import ENVIRONMENTS, installer, resolve_commit, version_of
from zbench.private import cache_directory

from .conftest import git


def test_two_revisions_are_sampled_side_by_side(tmp_path: Path) -> None:
    messages: list[str] = []
    base, head = versions = [version_of(tag, messages.append) for tag in ("v1", "v2")]
    sampler = Sampler({"base": base, "head": head}, tmp_path / "sweep.yaml", ["engine.zero_stage=1"])
    samples = sampler.take("base"), sampler.take("head")
    steps = [[r.timing.median_step_s for r in sample if r.timing] for sample in samples]
    assert steps == [[0.1], [0.2]]
    assert [version.commit for version in versions] == [
        git(Path.cwd(), "rev-parse", tag) for tag in ("v1", "v2")
    ]
    assert len(messages) <= 2, "other tests may have made one"
    messages.clear()
    assert version_of("v1", messages.append) == versions[0]
    assert not messages, "an environment that is there is used again"


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
    version = version_of(str(python.parents[1]), lambda _: None)
    assert (version.python, version.commit) == (python, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("broken", r"broken does not build \(log: .*the compiler is on fire"),
        ("nocli", "its command line cannot be imported.*No module named 'zbench.cli'"),
        ("no-such-revision", "no such revision in this repository"),
        ("", "expected a git revision"),
        ("--upload-pack=evil", "expected a git revision"),
        ("backend.py", "is a file, not an interpreter"),
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


def pruned(results: Path, environment: Path) -> bool:
    """Try to remove an environment as `zbench prune` does; return whether it is gone."""
    for folder in removable(results):
        if folder.path == environment:
            with suppress(UsageError):
                folder.remove()
    return not environment.exists()


def test_an_environment_in_use_is_not_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = (version_of("v1", lambda _: None) for _ in range(2))
    environment = first.python.parents[1]
    assert not pruned(tmp_path, environment)
    first.release()
    assert not pruned(tmp_path, environment), "the second measurement uses it still"
    second.release()
    assert pruned(tmp_path, environment)
    version_of("v1", lambda _: None).release()
    assert environment.is_dir()


def test_environments_are_kept_while_a_measurement_runs_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = cache_directory(ENVIRONMENTS)
    seen: list[bool] = []

    class Pruning(Voice):
        def note(self, text: str) -> None:
            if "kept" in text:
                seen.extend(pruned(tmp_path, environment) for environment in cache.glob("*-*/"))

    (tmp_path / "sweep.yaml").write_text("name: tiny\n")
    sides, file = ("v1", "v2"), tmp_path / "sweep.yaml"
    measure(sides, file, (0, 0), Settings(), Pruning(), sample_file=tmp_path / "samples.jsonl")
    assert seen.count(False) >= 2, "both are in use"
    assert all(pruned(tmp_path, environment) for environment in cache.glob("*-*/"))


def test_an_environment_that_does_not_build_blocks_nobody() -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match="does not build"):
            version_of("broken", lambda _: None)
