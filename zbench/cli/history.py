"""`zbench history`: every configuration over all runs, with the commits where its level changed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from zbench.analysis.history import Series
from zbench.app.history import series_in
from zbench.cli import console, options
from zbench.report.columns import Column, DataTable
from zbench.report.exports.texts import percent
from zbench.report.screen import print_table
from zbench.report.text import commit_text, label, sparkline
from zbench.spec.metrics import METRICS


def command(
    directory: options.Directory = None,
    branch: options.Branch = None,
    metric: Annotated[str, typer.Option(metavar="METRIC", help="Such as tokens_per_s.")] = "mean_step_s",
    match: Annotated[
        str, typer.Option(metavar="TEXT", help="Show only configurations whose name contains this text.")
    ] = "",
    alpha: Annotated[float, typer.Option(help="Probability of reporting a change by chance.")] = 0.01,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Show each configuration over the runs of a directory, and name the commits where it changed."""
    every_series, tags = series_in(
        directory or output_dir, console.voice(), branch=branch, metric=metric, match=match, alpha=alpha
    )
    if console.state.json:
        rows = [_series(one) for one in every_series]
        console.document({"metric": metric, "series": rows, "tags": tags})
    else:
        _print(every_series, metric, tags)


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


def _print(every_series: Sequence[Series], metric: str, tags: Mapping[str, str]) -> None:
    sweeps, branches = {one.sweep for one in every_series}, {one.branch for one in every_series}
    names = [
        f"{f'{one.sweep}: ' if len(sweeps) > 1 else ''}{f'{one.branch}: ' if len(branches) > 1 else ''}"
        f"{label(one.trial)}"
        for one in every_series
    ]
    form, title = METRICS[metric].format, METRICS[metric].title
    columns: list[Column[tuple[str, Series]]] = [
        Column("configuration", lambda row: row[0], left=True, folds=True),
        Column("runs", lambda row: len(row[1].visits)),
        Column("history", lambda row: sparkline(row[1].values), left=True),
        Column("first", lambda row: row[1].values[0], form, f"first {title}"),
        Column("last", lambda row: row[1].values[-1], form, f"last {title}"),
    ]
    screen = console.rich_console()
    rows = list(zip(names, every_series, strict=True))
    print_table(screen, DataTable(columns, rows), dropped_first=("history",))
    for one, name in zip(every_series, names, strict=True):
        for change in one.changes:
            where = "..".join(
                part for part in (commit_text(change.after), commit_text(change.commit)) if part
            )
            run = one.visits[change.index].run_id
            run = f"{run} [{tags[run]}]" if run in tags else run
            text = f"{name}: {percent(change.change)} since {run}{f' ({where})' if where else ''}"
            screen.print(Text(text), soft_wrap=True)
