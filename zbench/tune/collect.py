"""Records between a study and run directories, one for each kind of machine: these are never compared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from zbench.errors import UsageError
from zbench.record.record import Failure, Record
from zbench.record.store import TRIALS, RunDirectory, find_runs, load_environment, load_records
from zbench.record.summary import summarize
from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.ledger import Ledger, record_of, trial_at
from zbench.tune.objective import score
from zbench.tune.space import Space

_MOST_INVALID = 1000
_RUN_KEYS = ("world_size", "device", "threads_per_rank")
"""What of `run` must agree with earlier results; steps and seeds only say how long one looked."""


def gather(trials: Iterable[FrozenTrial], directory: RunDirectory) -> list[Record]:
    """Append what these trials left and the directory lacks; return what was new."""
    new = []
    for trial in trials:
        if "record" in trial.user_attrs and not directory.holds(trial.user_attrs["trial_id"], 0):
            new.append(replace(record_of(trial), run_id=directory.run_id))
            directory.append(new[-1])
    return new


def gather_elsewhere(ledger: Ledger, directory: RunDirectory, sweep: SweepSpec) -> list[Path]:
    """Write the records of other kinds of machines into run directories beside this one; return these."""
    kinds: dict[str, list[FrozenTrial]] = {}
    for trial in ledger.trials():
        if trial.user_attrs["kind"] != ledger.kind and "record" in trial.user_attrs:
            kinds.setdefault(trial.user_attrs["kind"], []).append(trial)
    facts = ledger.host_facts()
    written = []
    for kind, trials in sorted(kinds.items()):
        path = directory.path.with_name(f"{directory.path.name}@{kind}")
        if path.is_dir():
            other = RunDirectory.open(path)
        else:
            other = RunDirectory.create(
                path.parent.parent,
                sweep.name,
                spec=sweep_document(sweep),
                environment=facts.get(kind, {"fingerprint": kind}),
                run_id=path.name,
            )
        with other:
            gather(trials, other)
        written.append(path)
    return written


def adopt(ledger: Ledger, directory: RunDirectory, space: Space) -> None:
    """Enter the records of a run directory into a study that has none yet."""
    for record in directory.records():
        if record.repeat > 0 or record.outcome == "invalid":
            continue
        for point in [space.point_of(record.config), *space.included]:
            trial = space.trial(point)
            if isinstance(trial, TrialSpec) and trial.trial_id == record.trial_id:
                ledger.enter(point, record)
                break


def record_invalid(space: Space, directory: RunDirectory) -> None:
    """Record the points of a listed space that cannot exist, with the reason, as plain sweeps do."""
    if not space.is_listable:
        return
    for point in expand(space.sweep).invalid[:_MOST_INVALID]:
        if not directory.holds(point.trial_id, 0):
            error = Failure("invalid", point.reason)
            directory.append(
                Record(directory.run_id, point.trial_id, 0, point.axes, point.config, "invalid", error)
            )


def priors_from(paths: Iterable[Path], space: Space, kind: str) -> tuple[list[FrozenTrial], list[str]]:
    """Return what earlier runs teach about this space, and a sentence for every run that teaches nothing.

    paths: run directories, or directories of runs. UsageError where there is no run at all.
    """
    priors: list[FrozenTrial] = []
    remarks: list[str] = []
    for run in [run for path in paths for run in _runs(path)]:
        if load_environment(run).get("fingerprint") != kind:
            remarks.append(f"{run} teaches nothing: it was recorded on another kind of machine")
            continue
        taught = _observations(load_records(run), space)
        priors += taught
        if not taught:
            remarks.append(f"{run} teaches nothing: none of its configurations is in this space")
    return priors, remarks


def _observations(records: Sequence[Record], space: Space) -> list[FrozenTrial]:
    """Return a trial for each configuration of the records that is a point of the space."""
    trials = []
    for summary in summarize(record for record in records if record.outcome != "invalid"):
        point = space.point_of(summary.config)
        trial = space.trial(point) if space.encode(point) is not None else None
        if isinstance(trial, TrialSpec) and _shape(trial.config()) == _shape(summary.config):
            trials.append(trial_at(space, point, score(summary, space.sweep.objective), {}))
    return trials


def _shape(config: Mapping[str, Any]) -> list[Any]:
    run = {key: config.get("run", {}).get(key) for key in _RUN_KEYS}
    return [config.get("workload"), config.get("engine"), run]


def _runs(path: Path) -> list[Path]:
    runs = [path] if (path / TRIALS).is_file() else find_runs(path) if path.is_dir() else []
    if not runs:
        raise UsageError(
            f"search.warm_start: {path} holds no run; name a run directory or a directory of runs"
        )
    return runs
