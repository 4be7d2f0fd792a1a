"""Two versions of zbench to measure: git revisions, each in its own environment, or interpreters.

An environment contains only the revision's project; all other packages, such as torch, are those of the
running interpreter (`share_packages`). So two revisions differ in nothing else, and installing one takes
seconds. Environments are kept in the user's cache by commit and reused. In a repository other than zbench's,
the revision's own project is installed (the user's model, for instance), and zbench is the running one. A
revision without a project needs no installation.
"""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from zbench import _inside, git
from zbench.errors import UsageError, reason_of
from zbench.job.failures import NO_ROOM
from zbench.private import private_cache
from zbench.record.locks import DirectoryLock, NoLocksError
from zbench.record.store import StorageError, storage_errors
from zbench.scratch import scratch_directory

_LOG_LINES = 12
_REMEDY = "free some space, and run the same command again"
_BUILD_SECONDS = 1800.0
"""How long to wait for another command that builds the same environment."""

_PROJECT_FILES = ("pyproject.toml", "setup.py")
_INSIDE = Path(_inside.__file__)
_COPY = "zbench_inside"
"""The module name of `_inside.py` in an environment of a revision."""

ENVIRONMENTS = "environments"
"""Where environments of revisions are kept, in zbench's cache."""


@dataclass(frozen=True, slots=True)
class Version:
    """A zbench that can run: the name that the user gave, its interpreter and, for a revision, its commit.

    repository: the working tree that the commit belongs to. lock: keeps its environment from being removed.
    """

    name: str
    python: Path
    commit: str | None = None
    repository: Path | None = None
    lock: DirectoryLock | None = field(default=None, compare=False)

    def release(self) -> None:
        """Let the environment be removed: nothing runs in it any more."""
        if self.lock is not None:
            self.lock.release()


def version_of(text: str, tell: Callable[[str], None]) -> Version:
    """Return the version that `text` names: an interpreter, an environment, or a revision to install.

    UsageError if it is none of these, or if the revision does not build; the message names the log.
    """
    path = Path(text)
    if (path / "bin" / "python").is_file():
        path = path / "bin" / "python"
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise UsageError(
                f"{text} is a file, not an interpreter; expected a git revision, an environment or python"
            )
        return Version(text, path.absolute())
    commit = resolve_commit(text)
    repository = top_level()
    place, lock = _environment(text, commit, repository, tell)
    return Version(text, place / "bin" / "python", commit, repository, lock)


def resolve_commit(revision: str) -> str:
    """Return the full hash of a revision of the repository here; UsageError if there is none."""
    if not revision or revision.startswith("-"):
        raise UsageError(f"expected a git revision, an environment or an interpreter, got {revision!r}")
    done = git.call("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if done.returncode != 0:
        here = git.call("rev-parse", "--git-dir").returncode == 0
        why = (
            "no such revision in this repository"
            if here
            else "no file of this name, and the current directory is no git repository"
        )
        raise UsageError(f"{revision!r}: {why}; expected a git revision, an environment or an interpreter")
    return done.stdout.decode().strip()


def top_level() -> Path:
    """Return the root of the working tree here."""
    return Path(git.call("rev-parse", "--show-toplevel").stdout.decode().strip()).resolve()


def extract(
    revision: str, target: Path, repository: Path, *paths: str, tell: Callable[[str], None] | None = None
) -> None:
    """Write a revision's files (or these of them) into `target`; the repository itself is not touched.

    tell: a symbolic link that leads out of the repository is made, too, and `tell` is called with a notice;
    None: such a link is a UsageError.
    """
    done = git.call("archive", "--format=tar", revision, *paths, folder=repository)
    if done.returncode != 0:
        raise UsageError(f"git archive {revision} failed: {done.stderr.decode(errors='replace').strip()}")
    links: dict[str, Path] = {}

    def checked(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
        """Return the member to extract; None for a link that leads out, which is noted in `links`."""
        try:
            return tarfile.data_filter(member, place)
        except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
            links[member.name] = repository.absolute() / Path(member.name).parent / member.linkname
            return None

    try:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(target, filter=checked)
    except tarfile.FilterError as error:
        raise UsageError(f"{revision}: a file cannot be extracted: {error}; remove it there") from None
    except OSError as error:
        reason = reason_of(error)
        raise StorageError(f"cannot write the files of {revision} to {target}: {reason}; {_REMEDY}") from None
    if links and tell is None:
        raise UsageError(f"{revision}: {_first(links)} leads out of the repository; remove the link there")
    for name, goal in links.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(os.path.normpath(goal))
    if links and tell is not None:
        tell(f"{revision}: {_first(links)} leads out of the repository, where revisions have the same files")


def _first(links: Mapping[str, Path]) -> str:
    """Return the first of some symbolic links, and how many more there are, in words."""
    more = f" (and {len(links) - 1} more)" if len(links) > 1 else ""
    return f"the symbolic link {next(iter(links))}{more}"


def _environment(
    revision: str, commit: str, repository: Path, tell: Callable[[str], None]
) -> tuple[Path, DirectoryLock | None]:
    """Return the environment of a commit, built if it is missing, and the lock that keeps it from `prune`.

    Several measurements share an environment, and wait for a measurement that builds it.
    """
    depends = f"{sys.executable} {sys.version} {package_directories()} {repository} {_INSIDE.read_text()}"
    key = hashlib.sha256(depends.encode()).hexdigest()[:8]
    place = private_cache(ENVIRONMENTS) / f"{commit[:12]}-{key}"
    lock = _locked(place, is_shared=(place / "complete").is_file())
    try:
        if not (place / "complete").is_file():
            tell(f"installing {revision} ({commit[:12]})")
            _clear(place)
            _install(revision, commit, place, repository)
        (place / "complete").touch()  # each use: `zbench prune` goes by it
        if lock is not None:
            lock.share()
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return place, lock


def _locked(place: Path, *, is_shared: bool) -> DirectoryLock | None:
    """Return the lock of an environment; None if its file system has no locks."""
    while True:
        place.mkdir(0o700, exist_ok=True)
        try:
            lock = DirectoryLock(place, patience_s=_BUILD_SECONDS, is_shared=is_shared)
        except NoLocksError:
            return None
        except FileNotFoundError:  # it was removed at this moment
            continue
        if lock.is_of(place) and (not is_shared or (place / "complete").is_file()):
            return lock
        lock.release()  # the environment was removed while this process waited
        is_shared = False


def _clear(place: Path) -> None:
    """Remove what an interrupted installation left in an environment; its lock stays."""
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != ".lock":
            entry.unlink()


def _install(revision: str, commit: str, place: Path, repository: Path) -> None:
    """Build a commit's project into a new environment at `place`."""
    source = place / "source"
    log = place.with_suffix(".log")
    try:
        venv.EnvBuilder(symlinks=True).create(place)
        extract(commit, source, repository, tell=lambda _: None)  # each checkout tells it
    except OSError as error:
        raise StorageError(f"cannot make an environment in {place}: {reason_of(error)}; {_REMEDY}") from None
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    python = place / "bin" / "python"
    if any((source / name).is_file() for name in _PROJECT_FILES):
        _checked([*installer(python), str(source)], log, f"{revision} does not build")
    shutil.rmtree(source, ignore_errors=True)
    share_packages(site, package_directories(), repository)
    inside = f" and m.__file__.startswith({str(site)!r})" if (site / "zbench").exists() else ""
    check = f"import sys, zbench.cli.main as m; sys.exit(not (m.__file__{inside}))"
    _checked(
        [str(python), "-P", "-c", check],
        log,
        f"{revision} was built, but its command line cannot be imported",
    )
    log.unlink(missing_ok=True)


def installer(python: Path) -> list[str]:
    """Return the command that installs a project for `python`: uv where it is found, else pip."""
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--no-cache"]
    if find_spec("pip") is None:
        raise UsageError("installing a revision needs uv or pip; install one of them")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-cache-dir"]
    return [*pip, "--disable-pip-version-check"]


def _checked(command: list[str], log: Path, complaint: str) -> None:
    try:
        with log.open("ab") as file:
            done = subprocess.run(command, stdout=file, stderr=file, env=clean_environment(), check=False)
    except OSError as error:
        raise StorageError(f"cannot write {log}: {reason_of(error)}; {_REMEDY}") from None
    if done.returncode != 0:
        if any(words in log.read_text(errors="replace") for words in NO_ROOM):
            raise StorageError(f"{complaint}: no space left on a disk (log: {log}); {_REMEDY}")
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        tail = "\n  ".join(lines[-_LOG_LINES:])
        raise UsageError(f"{complaint} (log: {log}):\n  {tail}")


def clean_environment() -> dict[str, str]:
    """Return this process's environment without variables that name this zbench for other interpreters."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {key: value for key, value in os.environ.items() if key not in hidden}


def package_directories() -> list[str]:
    """Return the running interpreter's package directories."""
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def share_packages(site_packages: Path, shared: Sequence[str], tree: Path | None) -> None:
    """Make an environment use the running interpreter's packages, except those in the working tree `tree`."""
    shutil.copyfile(_INSIDE, site_packages / f"{_COPY}.py")
    call = f"{_COPY}.share({list(shared)!r}, {str(tree) if tree else None!r})"
    (site_packages / f"{_COPY}.pth").write_text(f"import {_COPY}; {call}\n")


class Checkouts:
    """Extracts the files of revisions when they are needed, into a directory that is removed at the end."""

    def __init__(self, file: Path, tell: Callable[[str], None] = lambda _: None) -> None:
        """file: the sweep file. tell: called with a notice about links that lead out of the repository."""
        self._file = file.resolve()
        self._tell = tell
        self._scratch = scratch_directory()

    def sweep_file(self, version: Version) -> Path:
        """Return the sweep file that a version runs.

        For a revision it is the revision's own file, in a copy of its tree: a worker looks for the sweep's
        model and data beside the file. If the revision has no such file, the given one is copied there. A
        file outside the repository, or the file of an interpreter, is used in place.
        """
        inside = version.repository is not None and self._file.is_relative_to(version.repository)
        if version.commit is None or version.repository is None or not inside:
            return self._file
        tree = Path(self._scratch.name) / version.commit
        if not tree.exists():
            extract(version.commit, tree, version.repository, tell=self._tell)
        file = tree / self._file.relative_to(version.repository)
        if not file.exists():
            if not file.resolve().is_relative_to(tree.resolve()):
                raise UsageError(f"{version.name}: {file} leads out of the revision; name another --sweep")
            with storage_errors():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self._file.read_bytes())
        return file
