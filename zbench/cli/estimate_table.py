"""What `zbench estimate` prints: a table or lines, and one configuration in full."""

from collections.abc import Mapping

from zbench.app.estimate import Forecast
from zbench.app.estimate_columns import (
    COST,
    DEVICE,
    HOST,
    HOST_OF_A_NODE,
    HOURS,
    MFU,
    RESERVED,
    STEP,
    TOKENS_PER_S,
    TRAINING,
    TRIAL,
    VERDICT,
)
from zbench.cli import console
from zbench.estimate.result import Estimate, NotSimulated, StepLaunches
from zbench.estimate.roofline import moved
from zbench.report.screen import print_table
from zbench.report.text import axes_text, plural
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

_LONGEST = 8  # allocations that are named
_DROPPED_FIRST = (
    "other_bytes", "activations", "state_bytes", "received_bytes", "sent_bytes", HOST.name,
    HOST_OF_A_NODE.name, RESERVED.name, HOURS.name, MFU.name, TOKENS_PER_S.name, TRAINING, COST.name,
)  # fmt: skip


def print_simulated(forecast: Forecast) -> None:
    """Print the device first, then what all configurations have in common, with each value's reason."""
    limit = "" if forecast.room.device is None else f" with {format_bytes(forecast.room.device)}"
    console.result(f"{forecast.headline or f'one rank on {forecast.device}{limit}'}")
    console.result("device and host are of one rank")
    console.result(paired({k: v for k, v in forecast.simulated.items() if k != "device"}) + "\n")


def print_assumptions(forecast: Forecast) -> None:
    """Print what the figures rest on, as a table of two columns on stderr."""
    if forecast.assumptions:
        console.note("assumed:\n" + paired(forecast.assumptions))


def paired(texts: Mapping[str, str]) -> str:
    """Return a line for each name and its text, aligned."""
    width = max(map(len, texts))
    return "\n".join(f"  {name:{width}}  {text}" for name, text in texts.items())


def print_rows(forecast: Forecast) -> None:
    """Print every configuration, and the invalid ones with the reason."""
    rows = forecast.rows
    axes = [key for row in forecast.rows for key in row.trial.axes]
    print_table(
        console.rich_console(),
        forecast.table,
        dropped_first=_DROPPED_FIRST,
        pinned=[TRIAL.name, *axes, DEVICE.name, STEP.name, VERDICT.name],
    )
    for row in rows:
        if isinstance(row.outcome, NotSimulated):
            console.result(f"{row.trial.trial_id}  not simulated: {row.outcome.reason}")
    for bad in forecast.invalid:
        console.result(f"{bad.trial_id}  invalid: {bad.reason}")
    if len(rows) == 1 and rows[0].estimate is not None:
        _print_peak(rows[0].trial, rows[0].estimate)
    for row in rows if console.state.verbose else ():
        if row.estimate is not None:
            _print_counts(axes_text(row.trial.axes), row.estimate.counts)


def _print_counts(label: str, counts: StepLaunches) -> None:
    console.result(f"\nOne step of one rank, {label}:")
    for name, count in counts.collectives.items():
        console.result(f"  {name:18}  {count['calls']:>7,} calls  {format_bytes(count['bytes']):>9}")
    for name, value in (
        ("operators launched", f"{counts.launches:,}"),
        ("gradient copies", f"{counts.gradient_copies:,}"),
        ("gathers for use", f"{counts.gathers['calls']:,}, {counts.gathers['exposed']:,} of them exposed"),
        ("leaves a node", format_bytes(counts.inter_node_bytes)),
        ("sent for the norm", format_bytes(counts.norm_bytes)),
        ("waits of the host", f"{counts.host_waits:,}"),
    ):
        console.result(f"  {name:18}  {value:>7}")


def _print_peak(trial: TrialSpec, estimate: Estimate) -> None:
    console.result(f"\nPeak memory of one rank of {trial.run.world_size}, reached in {estimate.phase}:")
    for place, held in (("device", estimate.device), ("host", estimate.host)):
        for name, size in sorted(held.items(), key=lambda item: -item[1]):
            console.result(f"  {place:6}  {name:12}  {format_bytes(size):>9}  {size:>16,} bytes")
    console.result(f"Building takes at most {format_bytes(estimate.build_device_bytes)} of the device.")
    console.result("\nLargest allocations at the peak:")
    for each in estimate.alive[:_LONGEST]:
        shape = "x".join(map(str, each.shape))
        console.result(
            f"  {format_bytes(each.nbytes):>9}  {each.category:12}  {each.count} x [{shape}] {each.dtype}"
            f"  {each.where}"
        )
    console.result("\nTraffic of one rank in one step, sent and received:" + " none" * (not estimate.traffic))
    for kind, payload in estimate.traffic.items():
        both = "  ".join(f"{format_bytes(size):>9}" for size in moved({kind: payload}, trial))
        console.result(f"  {kind:18}  {plural(payload['calls'], 'call'):>11}  {both}")
    if estimate.flops:
        console.result(f"\n{estimate.flops:.4g} FLOPs of the model, of one rank in one step")
