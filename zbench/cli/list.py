"""`zbench list`: the runs in a results directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from zbench.analysis.ranking import rank_run
from zbench.cli import console, options
from zbench.errors import ZbenchError
from zbench.launch.cache import leftovers
from zbench.record.store import SPEC, find_runs, load_environment, load_records
from zbench.record.summary import has_failed, is_incorrect, summarize
from zbench.record.tags import load_tags
from zbench.report.columns import Column, DataTable
from zbench.report.screen import print_table
from zbench.report.text import axes_text, printable, started_text, throughput_text
from zbench.spec.load import recorded_objective

_ID_LENGTH = 8


def _name(run: Mapping[str, Any]) -> str:
    return " ".join([run["run_id"], *(f"({tag})" for tag in run["tags"])])


def _recommended(run: Mapping[str, Any]) -> str | None:
    """Return the id of the best configuration or, after `≈`, of the one that is recommended."""
    mark = "≈" if run["best"] is None else ""
    return f"{mark}{run['recommended'][:_ID_LENGTH]}" if run["recommended"] is not None else None


_COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("run_id", _name, title="run", left=True),
    Column("sweep", lambda run: run["sweep"], left=True),
    Column("started", lambda run: started_text(run["started"]), left=True),
    Column("configurations", lambda run: run["configurations"], title="trials"),
    Column("failed", lambda run: run["failed"]),
    Column("incorrect", lambda run: run["incorrect"]),
    Column("best_throughput", lambda run: run["best_throughput"], title="throughput"),
    Column("recommended", _recommended, title="best trial", left=True),
    Column("best_axes", lambda run: run["best_axes"], axes_text, "configuration", left=True, folds=True),
)
_DROPPED_FIRST = ("best_axes", "started", "incorrect", "failed")


def command(
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """List the runs in a results directory, oldest first, and what killed commands left there."""
    names: dict[str, list[str]] = {}
    for tag, place in load_tags(output_dir).items():
        names.setdefault(place, []).append(tag)
    rows = [_row(path, names.get(f"{path.parent.name}/{path.name}", [])) for path in find_runs(output_dir)]
    remains = list(leftovers(output_dir))
    if console.state.json:
        console.document({"runs": rows, "leftovers": [str(one.path) for one in remains]})
        return
    if rows:
        _print(rows)
    else:
        console.note(f"no runs in {output_dir}; start one, for instance with `zbench sweep quickstart`")
    for one in remains:
        console.result(f"{one.kind}: {one.path}")
    if remains:
        console.note("a command writes these now, or was killed; `zbench prune` removes what is a day old")


def _row(path: Path, tags: list[str]) -> dict[str, Any]:
    """Return the facts of a run; a run that cannot be read is listed with the reason."""
    row: dict[str, Any] = {
        "run_id": path.name,
        "sweep": path.parent.name,
        "run_dir": str(path),
        "tags": tags,
        "problem": None,
    }
    try:
        environment = load_environment(path)
        summaries = summarize(load_records(path))
        objective = recorded_objective(path / SPEC)
        ranking = rank_run(path, summaries, objective, explains=console.state.json)
    except ZbenchError as error:
        return row | {"problem": str(error)}
    recommended = next((s for s in summaries if s.trial_id == ranking.recommended), None)
    return row | {
        "started": environment.get("started"),
        "machine": environment.get("fingerprint"),
        "configurations": len(summaries),
        "failed": sum(map(has_failed, summaries)),
        "incorrect": sum(map(is_incorrect, summaries)),
        "best_axes": recommended.axes if recommended else None,
        "best_tokens_per_s": recommended.number("tokens_per_s") if recommended else None,
        "best_throughput": throughput_text(recommended) if recommended else None,
        **ranking.document(),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    screen = console.rich_console()
    readable = [row for row in rows if not row["problem"]]
    if readable:
        print_table(screen, DataTable(_COLUMNS, readable), dropped_first=_DROPPED_FIRST)
    for row in rows:
        if row["problem"]:
            text = printable(f"{row['sweep']}/{row['run_id']} cannot be read: {row['problem']}")
            screen.print(Text(text), soft_wrap=True)
