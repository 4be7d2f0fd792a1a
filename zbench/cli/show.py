"""`zbench show`: the results of one run, finished or under way."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from zbench.analysis.ranking import rank_run
from zbench.analysis.relative import compared
from zbench.app.runs import best_of, exit_code
from zbench.cli import console, options
from zbench.errors import UsageError
from zbench.record.lines import jsonable
from zbench.record.store import SPEC, load_records, resolve_run
from zbench.record.summary import ConfigSummary, summarize
from zbench.report import exports
from zbench.report.detail import print_configuration
from zbench.report.exports import frame
from zbench.report.exports.csv import render_effects, render_relative, table_text
from zbench.report.relative import print_relative, relative_documents
from zbench.report.table import print_results
from zbench.spec.load import recorded_objective


def command(
    run: Annotated[
        str,
        options.run_argument(
            "RUN", "A run's path, id or tag, a sweep's name, `last`, or `last~1` before it."
        ),
    ] = "last",
    trial: options.Trial = None,
    relative_to: options.RelativeTo = [],  # noqa: B006 - Typer reads the default, nobody changes it
    by: options.By = [],  # noqa: B006
    output_format: Annotated[
        Literal["table", "csv", "parquet"],
        typer.Option("--format", help="csv and parquet (extra `pandas`) are for spreadsheets and pandas."),
    ] = "table",
    effects: Annotated[
        bool, typer.Option("--effects", help="With --format csv: one line for each choice, with its cost.")
    ] = False,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Write csv or parquet to FILE, not to stdout.")
    ] = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Show the results of one run as a table, or one of its configurations in full.

    Exit code: 0 if the run can be read. The exit code of the run itself is
    `run_exit_code` in the JSON document.
    """
    if output_format != "csv" and (to is None) == (output_format == "parquet"):
        raise UsageError("--to FILE needs --format csv or parquet, and parquet needs --to FILE; give both")
    path = resolve_run(run, output_dir)
    records = load_records(path)
    objective = recorded_objective(path / SPEC)
    summaries = summarize(records)
    ranking = rank_run(path, summaries, objective)
    if trial == "best":
        trial = best_of(path, ranking, console.voice())
    chosen = summaries if trial is None else [_named(summaries, trial)]
    relative = compared(summaries, relative_to, by)
    if relative is not None and trial is not None:
        raise UsageError("--relative-to shows all configurations and --trial one; leave out one of them")
    if console.state.json:
        trials = [jsonable(record) for summary in chosen for record in summary.records]
        about: dict[str, Any] = {"run_id": path.name, "run_dir": str(path), "trials": trials}
        about["configurations"] = frame.documents(chosen, ranking)
        more: dict[str, Any] = {} if relative is None else {"relative": relative_documents(relative)}
        more["run_exit_code"] = int(exit_code(records))
        console.document({**about, **ranking.document(), **more})
        return
    rows = [] if output_format == "table" else frame.flat_rows(chosen, ranking)
    if output_format == "parquet" and to is not None:
        frame.write_parquet(rows, to)
        return
    if output_format == "csv":
        text = table_text(rows) if relative is None else render_relative(relative)
        text = render_effects(ranking) if effects else text
        if to is None:
            console.data(text.removesuffix("\n"))
        else:
            exports.write({to.name: text}, to.parent)
        return
    console.note(f"{path}")
    if not records:
        console.result("no repeat has ended yet")
    elif relative is not None:
        print_relative(console.rich_console(), relative)
    elif trial is None and not console.state.verbose:
        print_results(console.rich_console(), records, objective, path, ranking)
    else:
        for summary in chosen:
            print_configuration(console.rich_console(), summary, path)


def _named(summaries: list[ConfigSummary], start: str) -> ConfigSummary:
    matches = [summary for summary in summaries if summary.trial_id.startswith(start)]
    if len(matches) != 1:
        choices = ", ".join(summary.trial_id for summary in matches or summaries)
        raise UsageError(f"expected the id of one configuration, got {start!r}; there are {choices}")
    return matches[0]
