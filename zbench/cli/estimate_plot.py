"""Draws what `zbench estimate` found, and beside it the same step as it was measured."""

from collections.abc import Sequence
from pathlib import Path

from zbench.cli import console
from zbench.cli.estimate_rows import EstimateRow
from zbench.errors import UsageError, ZbenchError
from zbench.estimate.picture import check, draw
from zbench.estimate.result import Estimate
from zbench.launch.local import run_once
from zbench.units import format_bytes

_MEASURE = "zbench.estimate.measured:measure"
_MOST_RANKS = 64


def draw_rows(path: Path, rows: Sequence[EstimateRow], base_dir: Path, *, measured: bool) -> None:
    """Write the picture: each configuration as simulated, followed by its measured step where asked for."""
    check(path)
    drawn: list[tuple[str, Estimate]] = []
    for row in rows:
        if row.estimate is None:
            continue
        word = "simulated: " if measured else ""
        drawn.append((f"{word}{row.title}", row.estimate))
        if measured:
            drawn.append(_measured(row, base_dir))
    if not drawn:
        raise UsageError(
            f"--plot {path}: no configuration could be simulated; see the reasons without --plot"
        )
    draw(path, drawn)


def _measured(row: EstimateRow, base_dir: Path) -> tuple[str, Estimate]:
    """Train the configuration for two steps on this machine's CPU; the second one is drawn."""
    trial = row.trial.model_copy(update={"run": row.trial.run.model_copy(update={"device": "cpu"})})
    if trial.run.world_size > _MOST_RANKS:
        raise UsageError(
            f"--measured: {trial.run.world_size} ranks would run here; use --world-size up to {_MOST_RANKS}"
        )
    try:
        answer = run_once(_MEASURE, trial, base_dir, patience=trial.run.timeout)
    except ZbenchError as error:
        raise UsageError(f"--measured: {row.title}: {error}; a smaller model may do") from None
    found = Estimate.from_json(answer["estimate"])
    counted = answer["allocator_peak_bytes"]
    assert row.estimate is not None
    both = [row.estimate.peak_device_bytes + row.estimate.peak_host_bytes]
    both.append(found.peak_device_bytes + found.peak_host_bytes)
    console.note(
        f"{row.title}: peaks of device and host, simulated {both[0]:,} bytes, measured between operators"
        f" {both[1]:,}" + ("" if counted is None else f", torch's allocator {counted:,}")
    )
    text = "" if counted is None else f", torch's allocator {format_bytes(counted)}"
    return f"measured on rank 0{text}: {row.title}", found
