"""Experiment trackers that a sweep reports to: `--log mlflow | wandb | tensorboard`, or plug-ins.

Each repeat that ends is logged as one of the tracker's runs. A tracker of one's own is an entry point of the
group `zbench.trackers`: a callable that takes the run directory and the sweep's name, and returns a
`Tracker`.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from zbench.errors import UsageError
from zbench.launch.events import Event, Notice, OnEvent, TrialFinished
from zbench.record.record import Record
from zbench.record.secrets import masked_record
from zbench.spec.metrics import METRICS

GROUP = "zbench.trackers"
SHIPPED = {
    "mlflow": "zbench.report.trackers.mlflow:MlflowTracker",
    "tensorboard": "zbench.report.trackers.tensorboard:TensorboardTracker",
    "wandb": "zbench.report.trackers.wandb:WandbTracker",
}


class Tracker(Protocol):
    """Takes each repeat once, as it ends."""

    def log(self, name: str, record: Record) -> None:
        """Log one repeat; `name` names it within the sweep's run."""

    def close(self) -> None:
        """Write what is buffered; nothing is logged afterwards."""


TrackerFactory = Callable[[Path, str], Tracker]


def tracker_factory(name: str) -> TrackerFactory:
    """Return the factory of the tracker called `name`. UsageError if it is unknown or not installed."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    try:
        if name in points:
            return points[name].load()  # type: ignore[no-any-return]
        if name in SHIPPED:
            module, _, attribute = SHIPPED[name].partition(":")
            return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except ImportError as error:
        raise UsageError(
            f"--log {name}: {error}; install it, as `pip install 'zbench[{name}]'`, or leave the flag out"
        ) from None
    names = ", ".join(sorted({*SHIPPED, *points}))
    raise UsageError(f"--log {name}: no such tracker; expected one of {names}")


@contextlib.contextmanager
def following(names: Sequence[str], run_dir: Path, sweep: str, show: OnEvent) -> Iterator[OnEvent]:
    """Yield a listener that passes each event to `show` and each ended repeat to the trackers.

    A tracker that fails gives one warning and is not used any more: no record depends on it.
    """
    factories = {name: tracker_factory(name) for name in dict.fromkeys(names)}
    trackers: dict[str, Tracker] = {}

    def attempt(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            trackers.pop(name, None)
            show(Notice(f"--log {name} stopped: {type(error).__name__}: {error}"))
            return None

    def listen(event: Event) -> None:
        show(event)
        if isinstance(event, TrialFinished) and event.record.outcome != "invalid":
            repeat = f"{event.record.trial_id}-r{event.record.repeat}"
            for name, tracker in list(trackers.items()):
                attempt(name, tracker.log, repeat, masked_record(event.record))

    for name, factory in factories.items():
        tracker = attempt(name, factory, run_dir, sweep)
        if tracker is not None:
            trackers[name] = tracker
    try:
        yield listen
    finally:
        for name, tracker in list(trackers.items()):
            attempt(name, tracker.close)


def parameters(record: Record) -> dict[str, str | int | float | bool]:
    """Return the repeat's axes, as values that every tracker accepts."""
    simple = (str, int, float, bool)
    return {key: value if isinstance(value, simple) else str(value) for key, value in record.axes.items()}


def figures(record: Record) -> dict[str, float]:
    """Return every number that was measured, by its metric's name."""
    values = {name: METRICS[name].read(record) for name in METRICS.names()}
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def labels(record: Record) -> dict[str, str]:
    """Return the repeat's texts: outcome, verdict, and the error if there is one."""
    words = {"outcome": record.outcome, "verdict": record.correctness.verdict, "trial_id": record.trial_id}
    return words | ({"error": record.error.message} if record.error is not None else {})
