"""No call of git runs a program that a repository configures; each trap is shown to be one by plain git."""

import ast
import os
import pty
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from zbench import git
from zbench.errors import UsageError
from zbench.launch.revisions import extract, resolve_commit
from zbench.record import environment

PACKAGE = Path(git.__file__).parent


SHOW_SIGNATURES = ("log", "--format=%G?")


class Hostile:
    """A repository of two commits, and the file that its programs make when they run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.mark = folder / "RAN"
        self.program = folder / "program"
        self.program.write_text(f"#!/bin/sh\ntouch {self.mark}\nexit 1\n")
        self.program.chmod(0o755)
        self.folder.mkdir()
        self.git("init", "-q")
        self.write("file", "one")
        self.commit()

    def git(self, *words: str, folder: Path | None = None) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        plain = ("-c", "core.fsmonitor=", "-c", "protocol.file.allow=always")
        command = ["git", *identity, *plain, *words]
        done = subprocess.run(command, cwd=folder or self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-qm", "change")

    def spring(self, *words: str) -> None:
        """Run plain git in a terminal, in a copy: a first call can make the second call harmless."""
        copy = shutil.copytree(self.folder, self.mark.parent / "copy", symlinks=True)
        terminal, stdout = pty.openpty()
        subprocess.run(["git", *words], cwd=copy, stdout=stdout, stderr=stdout, check=False, timeout=60)
        for _ in range(100):  # a program that git started may outlive git
            if self.mark.exists():
                break
            time.sleep(0.1)
        os.close(terminal)
        os.close(stdout)


def fsmonitor(hostile: Hostile) -> tuple[str, ...]:
    hostile.git("config", "core.fsmonitor", str(hostile.program))
    return ("status",)


def included_file(hostile: Hostile) -> tuple[str, ...]:
    hostile.write("configuration", f"[core]\nfsmonitor = {hostile.program}\n")
    hostile.git("config", "include.path", "../configuration")
    return ("status",)


def hook(hostile: Hostile) -> tuple[str, ...]:
    (hostile.folder / ".git/hooks/post-index-change").symlink_to(hostile.program)
    os.utime(hostile.folder / "file", (1, 1))
    return ("status",)


def hooks_path(hostile: Hostile) -> tuple[str, ...]:
    hook(hostile)
    hostile.git("config", "core.hooksPath", str(hostile.folder / ".git/hooks"))
    return ("status",)


def clean_filter(hostile: Hostile, name: str = "x", *where: str) -> tuple[str, ...]:
    hostile.write(".gitattributes", "file filter=x\nother filter=a=b\n")
    hostile.write("other", "two")
    hostile.commit()
    for key in ("clean", "smudge"):
        hostile.git("config", *where, f"filter.{name}.{key}", str(hostile.program))
    hostile.git("config", *where, f"filter.{name}.required", "true")
    for file in ("file", "other"):
        os.utime(hostile.folder / file, (1, 1))
    return ("status",)


def filter_named_like_an_assignment(hostile: Hostile) -> tuple[str, ...]:
    return clean_filter(hostile, "a=b")


def filter_of_a_working_tree(hostile: Hostile) -> tuple[str, ...]:
    hostile.git("config", "extensions.worktreeConfig", "true")
    return clean_filter(hostile, "x", "--worktree")


def smudge_filter(hostile: Hostile) -> tuple[str, ...]:
    clean_filter(hostile)
    return ("archive", "HEAD")


def filter_process(hostile: Hostile) -> tuple[str, ...]:
    hostile.write(".gitattributes", "file filter=x\n")
    hostile.commit()
    hostile.git("config", "filter.x.process", str(hostile.program))
    return ("archive", "HEAD")


def submodule(hostile: Hostile) -> tuple[str, ...]:
    hostile.git("clone", "-q", ".", "../inner")
    hostile.git("submodule", "--quiet", "add", "../inner", "inner")
    hostile.git("commit", "-qm", "a submodule")
    hostile.git("config", "core.fsmonitor", str(hostile.program), folder=hostile.folder / "inner")
    return ("status",)


def filter_of_a_submodule(hostile: Hostile) -> tuple[str, ...]:
    submodule(hostile)
    inner = hostile.folder / "inner"
    hostile.git("config", "core.fsmonitor", "", folder=inner)
    hostile.git("config", "filter.x.clean", str(hostile.program), folder=inner)
    (hostile.folder / ".git/modules/inner/info/attributes").write_text("file filter=x\n")
    os.utime(inner / "file", (1, 1))
    return ("status",)


def pager(hostile: Hostile) -> tuple[str, ...]:
    for key in ("core.pager", "pager.status"):
        hostile.git("config", key, str(hostile.program))
    return ("--paginate", "-c", "pager.status=true", "status")


def external_diff(hostile: Hostile) -> tuple[str, ...]:
    hostile.git("config", "diff.external", str(hostile.program))
    hostile.write("file", "two")
    return ("diff",)


def signature(hostile: Hostile) -> tuple[str, ...]:
    head, message = hostile.git("cat-file", "commit", "HEAD").split("\n\n")
    signed = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----"
    (hostile.folder / ".git/signed").write_text(f"{head}\n{signed}\n\n{message}\n")
    hostile.git("reset", "-q", hostile.git("hash-object", "-t", "commit", "-w", ".git/signed"))
    for key in ("gpg.program", "gpg.openpgp.program"):
        hostile.git("config", key, str(hostile.program))
    return SHOW_SIGNATURES


def missing_object(hostile: Hostile) -> tuple[str, ...]:
    """A partial clone: git would fetch the missing file, by a program that the repository names."""
    blob = hostile.git("rev-parse", "HEAD:file")
    (hostile.folder / f".git/objects/{blob[:2]}/{blob[2:]}").unlink()
    settings = {
        "core.repositoryFormatVersion": "1", "extensions.partialClone": "origin",
        "remote.origin.promisor": "true", "remote.origin.url": f"ext::{hostile.program}",
        "protocol.ext.allow": "always", "protocol.allow": "always",
    }  # fmt: skip
    for key, value in settings.items():
        hostile.git("config", key, value)
    return ("archive", "HEAD")


def bare_repository_in_a_folder(hostile: Hostile) -> tuple[str, ...]:
    """A folder of a plain clone that git takes for a bare repository."""
    inner = hostile.folder / "inner"
    hostile.git("init", "-q", "--bare", "inner")
    (inner / "tree").mkdir()
    (inner / "config").write_text(
        f"[core]\nrepositoryformatversion=0\nbare=false\nworktree=tree\nfsmonitor={hostile.program}\n"
    )
    hostile.folder = inner
    return ("status",)


TRAPS = [
    fsmonitor, included_file, hook, hooks_path, clean_filter, filter_named_like_an_assignment,
    filter_of_a_working_tree, smudge_filter, filter_process, submodule, filter_of_a_submodule, pager,
    external_diff, signature, missing_object, bare_repository_in_a_folder,
]  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_no_program_that_a_repository_configures_runs(
    trap: Callable[[Hostile], tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = Hostile(tmp_path)
    plain = trap(hostile)
    hostile.spring(*plain)
    assert hostile.mark.exists(), "the trap is none"
    hostile.mark.unlink()
    monkeypatch.chdir(hostile.folder)
    environment.collect()
    for words in (("status",), ("diff",), SHOW_SIGNATURES, ("branch", "--show-current")):
        git.call(*words)
    refused = trap in (missing_object, bare_repository_in_a_folder)
    with pytest.raises(UsageError) if refused else nullcontext():
        extract(resolve_commit("HEAD"), tmp_path / "out", hostile.folder)
    assert not hostile.mark.exists()


def test_a_filter_of_the_users_own_configuration_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = Hostile(tmp_path)
    hostile.write(".gitattributes", "file filter=large\n")
    hostile.commit()
    (tmp_path / "configuration").write_text('[filter "large"]\nsmudge = tr a-z A-Z\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "configuration"))
    extract("HEAD", tmp_path / "out", hostile.folder)
    assert (tmp_path / "out/file").read_text() == "ONE"


def test_every_call_of_git_goes_through_the_function_that_turns_programs_off() -> None:
    callers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.List | ast.Tuple | ast.Call)
        for word in [*getattr(node, "elts", []), *getattr(node, "args", [])][:1]
        if isinstance(word, ast.Constant) and str(word.value).split(" ")[0].rpartition("/")[2] == "git"
    }
    assert callers == {"git.py"}
