"""`zbench history`: every configuration over all runs, with the commits where its level changed."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from zbench.analysis.history import Series, history
from zbench.analysis.settings import check_alpha
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults
from zbench.cli import console, options
from zbench.errors import UsageError
from zbench.launch.revisions import extract
from zbench.record.store import TRIALS, find_runs, load_tags
from zbench.report.exports.texts import percent
from zbench.report.html.timelines import commit_text
from zbench.report.screen import Column, print_table
from zbench.report.text import label, sparkline
from zbench.spec.metrics import METRICS, metric_named

_HEADINGS = ("configuration", "runs", "history", "first", "last")


def command(
    directory: options.Directory = None,
    branch: options.Branch = None,
    metric: Annotated[str, typer.Option(metavar="METRIC", help="Such as tokens_per_s.")] = "mean_step_s",
    match: Annotated[
        str, typer.Option(metavar="TEXT", help="Show only configurations whose name contains this.")
    ] = "",
    alpha: Annotated[float, typer.Option(help="Probability of reporting a change that is none.")] = 0.01,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Show each configuration over the runs of a directory, and name the commits where it changed."""
    _check_metric(metric)
    check_alpha(alpha)
    place = directory or output_dir
    with checked_out(place, branch) as root:
        found = history(_readable(root), metric, alpha=alpha)
        tags = {run.rpartition("/")[2]: tag for tag, run in load_tags(root).items()}
    if not found:
        raise UsageError(f"{place} has no finished run with a {metric}; run a sweep, or name another place")
    every_series = [one for one in found if match in label(one.trial)]
    if not every_series:
        raise UsageError(f"no configuration in {place} has {match!r} in its name and a {metric}")
    if console.state.json:
        rows = [_series(one) for one in every_series]
        console.document({"metric": metric, "series": rows, "tags": tags})
    else:
        _print(every_series, metric, tags)


def _check_metric(name: str) -> None:
    try:
        unit = metric_named(name).unit
    except ValueError as error:
        raise UsageError(f"--metric: {error}") from None
    if unit == "verdict":
        raise UsageError("--metric: verdict is not a number; expected one such as mean_step_s")


def _readable(root: Path) -> Iterator[RunResults]:
    """Yield the runs in a directory, oldest first; warn of each run that cannot be read."""
    for path in find_runs(root):
        if (path / TRIALS).stat().st_size > 0:
            try:
                yield load_results(str(path), root)
            except UsageError as error:
                console.warn(f"left out: {error}")


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
    with tempfile.TemporaryDirectory(prefix="zbench-history-") as scratch:
        try:
            extract(branch, Path(scratch), Path(), str(directory))
        except UsageError as error:
            raise UsageError(f"--branch {branch}: {error}") from None
        yield Path(scratch) / directory


def _series(series: Series) -> dict[str, Any]:
    return {
        "trial_id": series.trial.trial_id,
        "sweep": series.sweep,
        "axes": series.trial.axes,
        "branch": series.branch,
        "machine": dict(series.facts),
        "visits": [dataclasses.asdict(visit) for visit in series.visits],
        "changes": [
            {
                "run_id": series.visits[change.index].run_id,
                "change": change.change,
                "after_commit": change.after,
                "commit": change.commit,
            }
            for change in series.changes
        ],
    }


def _print(every_series: list[Series], metric: str, tags: Mapping[str, str]) -> None:
    columns = [Column(name, "left", wraps=True) for name in _HEADINGS]
    rows = []
    sweeps, branches = {one.sweep for one in every_series}, {one.branch for one in every_series}
    names = [
        f"{f'{one.sweep}: ' if len(sweeps) > 1 else ''}{f'{one.branch}: ' if len(branches) > 1 else ''}"
        f"{label(one.trial)}"
        for one in every_series
    ]
    for one, name in zip(every_series, names, strict=True):
        ends = (METRICS[metric].format(value) for value in (one.values[0], one.values[-1]))
        rows.append([name, str(len(one.visits)), sparkline(one.values), *ends])
    screen = console.rich_console()
    print_table(screen, columns, [list(map(Text, row)) for row in rows])
    for one, name in zip(every_series, names, strict=True):
        for change in one.changes:
            where = "..".join(
                part for part in (commit_text(change.after), commit_text(change.commit)) if part
            )
            run = one.visits[change.index].run_id
            run = f"{run} [{tags[run]}]" if run in tags else run
            text = f"{name}: {percent(change.change)} since {run}{f' ({where})' if where else ''}"
            screen.print(Text(text), soft_wrap=True)
