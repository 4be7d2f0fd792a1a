"""What `zbench estimate` prints: a table or lines, and one configuration in full."""

from collections.abc import Sequence

from rich.text import Text

from zbench.cli import console
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import moved
from zbench.estimate.row import EstimateRow
from zbench.report.screen import Column, print_table
from zbench.spec.trial import InvalidTrial, TrialSpec
from zbench.units import format_bytes

_LONGEST = 8  # allocations that are named


def print_rows(rows: Sequence[EstimateRow], invalid: Sequence[InvalidTrial]) -> None:
    """Print every configuration, and the invalid ones with the reason."""
    table = [row.cells() for row in rows]
    keys = list(dict.fromkeys(key for cells in table for key in cells))
    columns = [Column(key, "left") for key in keys]
    print_table(console.rich_console(), columns, [[Text(c.get(key, "-")) for key in keys] for c in table])
    for bad in invalid:
        console.result(f"{bad.trial_id}  invalid: {bad.reason}")
    if len(rows) == 1 and rows[0].estimate is not None:
        _print_peak(rows[0].trial, rows[0].estimate)


def _print_peak(trial: TrialSpec, estimate: Estimate) -> None:
    console.result(f"\nPeak memory of one rank of {trial.run.world_size}, reached in {estimate.phase}:")
    for place, held in (("device", estimate.device), ("host", estimate.host)):
        for name, size in sorted(held.items(), key=lambda item: -item[1]):
            console.result(f"  {place:6}  {name:12}  {format_bytes(size):>9}  {size:>16,} bytes")
    console.result("\nLargest allocations at the peak:")
    for each in estimate.alive[:_LONGEST]:
        shape = "x".join(map(str, each.shape))
        console.result(
            f"  {format_bytes(each.nbytes):>9}  {each.category:12}  {each.count} x [{shape}] {each.dtype}"
            f"  {each.where}"
        )
    console.result("\nTraffic of one rank in one step, sent and received:")
    for kind, payload in estimate.traffic.items():
        both = "  ".join(f"{format_bytes(size):>9}" for size in moved({kind: payload}, trial))
        console.result(f"  {kind:18}  {payload['calls']:>5} calls  {both}")
    if estimate.flops:
        console.result(f"\n{estimate.flops:.4g} FLOPs of one rank in one step")
