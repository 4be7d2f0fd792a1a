"""`zbench list`: the runs in a results directory."""

from pathlib import Path
from typing import Any

from rich.text import Text

from zbench.analysis.ranking import rank_run
from zbench.cli import console, options
from zbench.errors import ZbenchError
from zbench.record.store import SPEC, find_runs, load_environment, load_records
from zbench.record.summary import has_failed, is_incorrect, summarize
from zbench.record.tags import load_tags
from zbench.report.screen import Column, plain, print_table
from zbench.report.text import axes_text, printable, started_text, throughput_text
from zbench.spec.load import recorded_objective

_ID_LENGTH = 8
_COLUMNS = (
    Column("run", "left"),
    Column("sweep", "left"),
    Column("started", "left"),
    Column("trials"),
    Column("failed"),
    Column("incorrect"),
    Column("throughput"),
    Column("best trial", "left"),
    Column("configuration", "left", folds=True),
)
_DROPPED_FIRST = ("configuration", "started", "incorrect", "failed")


def command(
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """List the runs in a results directory, oldest first."""
    names: dict[str, list[str]] = {}
    for tag, place in load_tags(output_dir).items():
        names.setdefault(place, []).append(tag)
    rows = [_row(path, names.get(f"{path.parent.name}/{path.name}", [])) for path in find_runs(output_dir)]
    if console.state.json:
        console.document({"runs": rows})
    elif rows:
        _print(rows)
    else:
        console.note(f"no runs in {output_dir}; start one, for instance with `zbench sweep quickstart`")


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
        environment, summaries = load_environment(path), summarize(load_records(path))
        ranking = rank_run(path, summaries, recorded_objective(path / SPEC))
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
    readable = [list(map(plain, _cells(row))) for row in rows if not row["problem"]]
    if readable:
        print_table(screen, _COLUMNS, readable, dropped_first=_DROPPED_FIRST)
    for row in rows:
        if row["problem"]:
            text = printable(f"{row['sweep']}/{row['run_id']} cannot be read: {row['problem']}")
            screen.print(Text(text), soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    has_best = row["recommended"] is not None
    mark = "≈" if row["best"] is None else ""
    return [
        " ".join([row["run_id"], *(f"({tag})" for tag in row["tags"])]),
        str(row["sweep"]),
        started_text(row["started"]),
        *(str(row[key]) for key in ("configurations", "failed", "incorrect")),
        row["best_throughput"] or "-",
        f"{mark}{str(row['recommended'])[:_ID_LENGTH]}" if has_best else "-",
        axes_text(row["best_axes"]) if has_best else "-",
    ]
