"""Tables of commands at two widths, whole: no word and no value is broken; kept in tests/cli/kept."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import keeping
from zbench.app.estimate import Forecast
from zbench.cli import console, estimate_table, list
from zbench.estimate.result import Capacity, Estimate, NotSimulated
from zbench.estimate.roofline import StepTime
from zbench.estimate.row import EstimateRow
from zbench.report.screen import Screen
from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec

KEPT = Path(__file__).parent / "kept"
WIDTHS = (80, 100, 160)
GIB = 1 << 30
UNITS = r"(?:B|[KMGT]iB|s|ms|us|%|tokens/s|days)"


def _estimate(screen: Screen) -> None:
    sweep = SweepSpec.model_validate(
        {"name": "sizes", "run": {"world_size": 8}, "axes": {"zero_stage": [0, 2, 3], "dtype": ["bfloat16"]}}
    )
    held = {"parameters": 2 * GIB, "moments": 3 * GIB, "activations": 5 * GIB}
    traffic = {"all_gather": {"calls": 4, "bytes": GIB}}
    rows = [
        EstimateRow(
            trial,
            Estimate((12 + 3 * k) * GIB, 4 * GIB, 20 * GIB, held, {}, "backward", [], traffic, 1e12),
            Capacity(22 * GIB, 512 * GIB),
            time=StepTime(0.25, 0.5, 0.0, 0.0, 0.0, 0.0),
            training=(10**12, (86_400.0 * 40, 86_400.0 * 80)),
        )
        for k, trial in enumerate(expand(sweep, simulated=True).trials)
    ]
    rows[1] = EstimateRow(rows[1].trial, NotSimulated("the operator aten.x has no fake kernel"), rows[1].room)
    estimate_table.print_rows(Forecast(sweep, rows, (), rows[0].room))


def _list(screen: Screen) -> None:
    row = {
        "run_id": "20261127-061500-a1b2", "tags": ["nightly"], "problem": None, "sweep": "quickstart",
        "started": "2026-11-27T06:15:00+00:00", "configurations": 11, "failed": 1, "incorrect": 0,
        "best_throughput": "12,345 tokens/s", "best": None, "recommended": "0123456789ab",
        "best_axes": {"zero_stage": 2, "offload_optimizer": "cpu", "reduce_bucket_size": 5_000_000},
    }  # fmt: skip
    list._print([row, row | {"run_id": "20261127-071500-b2c3", "tags": [], "recommended": None}])


COMMANDS: dict[str, Callable[[Screen], None]] = {
    "estimate": _estimate,
    "list": _list,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_table_breaks_no_word_and_no_value(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    screen = Screen(file=out, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "rich_console", lambda: screen)
    monkeypatch.setattr(console, "result", lambda text="": print(text, file=out))
    COMMANDS[command](screen)
    text = out.getvalue()
    keeping.check(KEPT / f"{command}-{width}.txt", "\n".join(line.rstrip() for line in text.splitlines()))
    assert command != "estimate" or ("250 to" in text and "ms" in text), "the time of a step is never dropped"
    broken = re.findall(rf"\d\s*\n\s*{UNITS}\b", text)
    assert not broken, broken
