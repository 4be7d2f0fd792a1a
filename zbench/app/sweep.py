"""Measures every configuration of a sweep."""

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from zbench.analysis.adaptive_repeats import contenders
from zbench.app.request import Request
from zbench.app.runs import Interruption, carried_out, facts
from zbench.app.voice import Voice
from zbench.launch.events import OnEvent
from zbench.launch.executor import targets_for
from zbench.launch.executors import Backend, make_executor, require_room
from zbench.launch.sweep import SweepPlan, run_sweep
from zbench.record.record import Record
from zbench.record.store import RunDirectory
from zbench.spec.expand import expand, warnings_of


def measured(
    request: Request,
    voice: Voice,
    *,
    backend: Backend = None,
    max_seconds: float = math.inf,
    trace: bool = False,
) -> tuple[Path, Sequence[Record], Interruption | None]:
    """Run the sweep; return the run directory, its records, and what cut the run short."""
    expansion = expand(request.sweep)
    for warning in warnings_of(request.sweep, expansion):
        voice.warn(warning)
    require_room(expansion.trials, request.base_dir, backend)
    sweep = request.sweep
    plan = SweepPlan(
        expansion,
        seed=sweep.run.seed,
        contenders=lambda records: contenders(records, sweep.objective),
        max_seconds=max_seconds,
        trace=trace,
    )

    def run(directory: RunDirectory, tell: OnEvent) -> None:
        targets = targets_for(expansion.trials)
        executor = partial(
            make_executor, directory.path, request.base_dir, backend, targets=targets, on_event=tell
        )
        run_sweep(plan, directory, executor, on_event=tell)

    about = facts(request, sys.argv[1:])
    directory, _, failure = carried_out(request, about, run, measured_here=backend is None, voice=voice)
    return directory.path, directory.records(), failure
