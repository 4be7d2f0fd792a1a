"""Prints what `zbench estimate` found: a table or lines, and of a single configuration all that is known."""

import sys
from collections.abc import Sequence

from zbench.cli import console
from zbench.cli.estimate_rows import EstimateRow
from zbench.estimate.result import Estimate
from zbench.spec.trial import InvalidTrial
from zbench.units import format_bytes

_LONGEST = 8  # allocations that are named


def print_rows(rows: Sequence[EstimateRow], invalid: Sequence[InvalidTrial]) -> None:
    """Print every configuration, and those that cannot exist."""
    table = [row.cells() for row in rows]
    keys = list(dict.fromkeys(key for cells in table for key in cells))
    if console.is_terminal(sys.stdout):
        from rich.table import Table

        drawn = Table(*keys, box=None, header_style="bold")
        for cells in table:
            drawn.add_row(*(cells.get(key, "-") for key in keys))
        console.rich_console().print(drawn)
    else:
        for cells in table:
            console.result("  ".join(f"{key}={value}" for key, value in cells.items()))
    for bad in invalid:
        console.result(f"{bad.trial_id}  invalid: {bad.reason}")
    if len(rows) == 1 and rows[0].estimate is not None:
        _print_peak(rows[0].trial.run.world_size, rows[0].estimate)


def _print_peak(ranks: int, found: Estimate) -> None:
    console.result(f"\nPeak in {found.phase}, per rank of {ranks}:")
    for place, held in (("device", found.device), ("host", found.host)):
        for name, size in sorted(held.items(), key=lambda item: -item[1]):
            console.result(f"  {place:6}  {name:12}  {format_bytes(size):>9}  {size:>16,} bytes")
    console.result("\nLargest allocations alive then:")
    for each in found.alive[:_LONGEST]:
        shape = "x".join(map(str, each.shape))
        console.result(
            f"  {format_bytes(each.nbytes):>9}  {each.category:12}  {each.count} x [{shape}] {each.dtype}"
            f"  {each.where}"
        )
    console.result("\nTraffic of one step:")
    for kind, moved in found.traffic.items():
        console.result(f"  {kind:18}  {moved['calls']:>5} calls  {format_bytes(moved['bytes']):>9}")
    if found.flops:
        console.result(f"\n{found.flops:.4g} FLOPs a step and rank")
