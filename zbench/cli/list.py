"""`zbench list`: the runs below a results directory."""

from pathlib import Path
from typing import Any

from zbench.cli import console
from zbench.cli.options import DEFAULT_OUTPUT_DIR, Json, NoColor, OutputDir, Quiet, Verbose
from zbench.errors import ZbenchError


def command(
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """List the runs in a results directory, oldest first."""
    from zbench.record.store import find_runs

    rows = [_row(path) for path in find_runs(output_dir)]
    if as_json:
        console.document({"schema_version": 1, "runs": rows, "exit_code": 0})
    elif rows:
        _print(rows)
    else:
        console.note(f"no runs in {output_dir}; `zbench sweep sweeps/quickstart.yaml` makes one")


def _row(path: Path) -> dict[str, Any]:
    """Return what is worth knowing of a run; a run that cannot be read is listed with the reason."""
    from zbench.record.store import load_environment, load_records
    from zbench.record.summary import best, summarize
    from zbench.report.text import outcome_text
    from zbench.spec.load import load_sweep

    row: dict[str, Any] = {
        "run_id": path.name,
        "sweep": path.parent.name,
        "run_dir": str(path),
        "problem": None,
    }
    try:
        environment = load_environment(path)
        summaries = summarize(load_records(path))
        winner = best(summaries, load_sweep(path / "spec.yaml", environ={}, inputs=False).objective)
    except ZbenchError as error:
        return row | {"problem": str(error)}
    return row | {
        "started": environment.get("started"),
        "machine": environment.get("fingerprint"),
        "configurations": len(summaries),
        "failed": sum(outcome_text(summary) in ("oom", "timeout", "crashed") for summary in summaries),
        "incorrect": sum(summary.verdict in ("drifted", "wrong") for summary in summaries),
        "best": winner.trial_id if winner else None,
        "best_axes": winner.axes if winner else None,
        "best_tokens_per_s": winner.number("tokens_per_s") if winner else None,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from zbench.report.text import axes_text, rate_text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "sweep", "started"):
        table.add_column(name, no_wrap=True)
    for name in ("trials", "failed", "incorrect", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("best")
    for row in rows:
        if row["problem"]:
            table.add_row(row["run_id"], row["sweep"], "", "", "", "", "", row["problem"])
            continue
        counts = (str(row["configurations"]), str(row["failed"]), str(row["incorrect"]))
        best = axes_text(row["best_axes"]) if row["best"] else "-"
        started = str(row["started"] or "")[:16].replace("T", " ")
        table.add_row(
            row["run_id"], row["sweep"], started, *counts, rate_text(row["best_tokens_per_s"]), best
        )
    console.rich_console().print(table)
