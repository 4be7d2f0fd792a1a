"""What is known of all runs of a directory: every configuration over them, and the static site."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zbench import git
from zbench.analysis.history import Series, history
from zbench.analysis.settings import check_alpha
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults
from zbench.app.voice import Voice
from zbench.errors import UsageError
from zbench.launch.revisions import extract
from zbench.record.store import TRIALS, find_runs
from zbench.record.tags import load_tags
from zbench.report.site.publish import publish as write_site
from zbench.report.site.store import Site
from zbench.report.text import label
from zbench.scratch import scratch_directory
from zbench.spec.metrics import metric_named

_REMOTE = re.compile(r"(?:https://|ssh://)?(?:[^@/]*@)?([\w.-]+)[:/]([\w./~-]+?)(?:\.git)?/?")


def series_in(
    directory: Path, voice: Voice, *, branch: str | None, metric: str, match: str, alpha: float
) -> tuple[Sequence[Series], Mapping[str, str]]:
    """Return each configuration over the runs of a directory, and the tags of runs; UsageError for none.

    branch: the git revision to read the directory from. match: what a configuration's name contains.
    alpha: the probability of reporting a change that is none.
    """
    _check_metric(metric)
    check_alpha(alpha)
    with checked_out(directory, branch) as root:
        all_series = history(_readable(root, voice), metric, alpha=alpha)
        tags = {run.rpartition("/")[2]: tag for tag, run in load_tags(root).items()}
    if not all_series:
        raise UsageError(
            f"{directory} has no finished run with a {metric}; run a sweep, or name another place"
        )
    matching = [one for one in all_series if match in label(one.trial)]
    if not matching:
        raise UsageError(f"no configuration in {directory} has {match!r} in its name and a {metric}")
    return matching, tags


def publish(
    directory: Path, to: Path, voice: Voice, *, branch: str | None, commits: str | None
) -> tuple[int, int]:
    """Write the site of all runs of a directory; return how many runs it has, and how many files are new.

    branch: as of `series_in`. commits: the address of commits, before the hash; None for that of `origin`.
    """
    if commits is not None and not commits.startswith(("https://", "http://")):
        raise UsageError(
            f"--commits: expected an address such as https://example.org/project/commit/, got {commits!r}"
        )
    with checked_out(directory, branch) as root:
        runs = find_runs(root)
        if not runs:
            raise UsageError(f"{directory} has no run; run a sweep first, or name its directory")
        with contextlib.closing(Site(to)) as site:
            address = _commits_at_origin() if commits is None else commits
            published = write_site(site, runs, load_tags(root), address, voice.warn)
    return len(published), site.written


def _check_metric(name: str) -> None:
    try:
        unit = metric_named(name).unit
    except ValueError as error:
        raise UsageError(f"--metric: {error}") from None
    if unit == "verdict":
        raise UsageError("--metric: verdict is not a number; expected one such as mean_step_s")


def _readable(root: Path, voice: Voice) -> Iterator[RunResults]:
    """Yield the runs in a directory, oldest first; warn of each run that cannot be read."""
    for path in find_runs(root):
        if (path / TRIALS).stat().st_size > 0:
            try:
                yield load_results(str(path), root)
            except UsageError as error:
                voice.warn(f"left out: {error}")


@contextlib.contextmanager
def checked_out(directory: Path, branch: str | None) -> Iterator[Path]:
    """Give the directory, or a temporary copy of it from a git revision."""
    if branch is None:
        if not directory.is_dir():
            raise UsageError(f"no such directory: {directory}; expected a directory of runs")
        yield directory
        return
    if branch.startswith("-") or directory.is_absolute():
        raise UsageError(
            f"--branch: expected a git revision and a path inside it, got {branch!r} and {directory}"
        )
    with scratch_directory() as scratch:
        try:
            extract(branch, Path(scratch), Path(), str(directory))
        except UsageError as error:
            raise UsageError(f"--branch {branch}: {error}") from None
        yield Path(scratch) / directory


def _commits_at_origin() -> str:
    """Return the address of commits on GitHub or at the remote `origin`; empty if it is not known."""
    server, repository = (os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY"))
    if server and repository:
        return f"{server}/{repository}/commit/"
    done = git.call("remote", "get-url", "origin")
    match = _REMOTE.fullmatch(done.stdout.decode(errors="replace").strip())
    return f"https://{match[1]}/{match[2]}/commit/" if match and "." in match[1] else ""
