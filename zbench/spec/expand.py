"""Expands a sweep to its trials: the product of the axes, minus `exclude`, plus `include`, each once."""

import heapq
import itertools
import json
import os
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zbench.errors import SpecError
from zbench.gpus import MULTI_RANK, ranks_share_by_nccl
from zbench.spec import shapes
from zbench.spec.axes import Axis, Point, included, matching, resolve_axes
from zbench.spec.base_rows import with_comparisons, with_other_micro_batches
from zbench.spec.combinations import engine_conflicts, refusals
from zbench.spec.ds_config import with_ds_config
from zbench.spec.engine import EngineSpec
from zbench.spec.environments import executable, with_environment
from zbench.spec.keys import Key, assign, short_name, value_at
from zbench.spec.peers import peer_conflicts, with_own_stage
from zbench.spec.problems import ProblemsError
from zbench.spec.run import RunSpec, gpus_to_share, is_on_cpu, shared_gpus
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec, config_id, nodes_mistake, with_accumulation
from zbench.spec.workload import WorkloadSpec

_STAGE = ("engine", "zero_stage")
_MICRO_BATCH = ("workload", "micro_batch_size")


@dataclass(frozen=True, slots=True)
class Expansion:
    """The points of a sweep in the order of the file: valid trials, and invalid ones."""

    trials: list[TrialSpec]
    invalid: list[InvalidTrial]
    duplicates: int = 0
    excluded: int = 0
    unused: list[int] = field(default_factory=list)
    """Indices of the `exclude` entries that match no point."""


def expand(sweep: SweepSpec, *, simulated: bool = False) -> Expansion:
    """Return every point of a sweep whose axes are lists. SpecError for mistakes and for ranges.

    simulated: its ranks need no GPUs, and DeepSpeed need not be installed.
    """
    try:
        points = Points(sweep, simulated)
        extra = included(sweep)
    except ProblemsError as error:
        raise SpecError(str(error)) from None
    if any(axis.range is not None for axis in points.axes):
        raise SpecError("a range has no list of points; only a search draws points from it", key="axes")
    walked = list(_walk(points, extra))
    candidates = [trial for trial, _ in walked if trial is not None]
    distinct: dict[str, TrialSpec | InvalidTrial] = {}
    for trial in candidates:
        distinct.setdefault(trial.trial_id, trial)
    trials = [trial for trial in distinct.values() if isinstance(trial, TrialSpec)]
    invalid = [trial for trial in distinct.values() if isinstance(trial, InvalidTrial)]
    used = {index for _, excluding in walked for index in excluding}
    unused = [index for index in range(len(sweep.exclude)) if index not in used]
    if sweep.search.method == "covering":
        chosen = covering([trial.axes for trial in trials], sweep.search.strength, sweep.search.seed)
        trials = [trials[index] for index in chosen]
        invalid = []
    return Expansion(trials, invalid, len(candidates) - len(distinct), len(walked) - len(candidates), unused)


def warnings_of(sweep: SweepSpec, expansion: Expansion) -> Iterator[str]:
    """Yield warnings of `exclude` entries that match no point (often misspelt), and of shared GPUs."""
    for index in expansion.unused:
        yield f"exclude.{index} matches no point of the sweep: {sweep.exclude[index]}"
    if gpus := gpus_to_share(sweep.run):
        yield shared_gpus(sweep.run.world_size, gpus)


def all_points(sweep: SweepSpec, *, simulated: bool = False) -> Iterator[TrialSpec | InvalidTrial]:
    """Yield the points of a checked sweep without the excluded ones. Duplicates are not removed."""
    return (trial for trial, _ in _walk(Points(sweep, simulated), included(sweep)) if trial is not None)


def _walk(
    points: "Points", extra: Sequence[Mapping[Key, Any]]
) -> Iterator[tuple[TrialSpec | InvalidTrial | None, set[int]]]:
    """Yield (trial, or None if excluded; indices of the `exclude` entries that match) for each point."""
    if points.axes or not extra:
        for point in _product(points.axes, {}):
            excluding = points.excluding(point)
            yield None if excluding else points.trial(point), excluding
    for values in extra:
        yield points.included(values), set()


def _product(axes: Sequence[Axis], point: dict[str, Any]) -> Iterator[Point]:
    """Yield the product of the axes that apply, the last axis varying fastest."""
    if not axes:
        yield point
        return
    first, rest = axes[0], axes[1:]
    if not first.applies(point):
        yield from _product(rest, point)
        return
    for value in first.values or ():
        yield from _product(rest, {**point, first.key: value})


class Points:
    """Makes the trials of one sweep. ProblemsError for mistakes in its axes or `exclude` entries."""

    def __init__(self, sweep: SweepSpec, simulated: bool = False) -> None:
        self._sweep = sweep
        self._base = base_config(sweep)
        self._simulated = simulated
        self.axes = resolve_axes(sweep)
        self._excludes = matching(sweep)
        self._path_of = {axis.key: axis.path for axis in self.axes}

    def trial(self, point: Point) -> TrialSpec | InvalidTrial:
        """Return the trial at a point (axis -> value)."""
        shown = {key: without_nulls(point[key]) for key in self._path_of if key in point}
        return self._trial(self._values(point), shown)

    def excluding(self, point: Point) -> set[int]:
        """Return the indices of the `exclude` entries that match a point, before derived keys are set."""
        if not self._excludes:
            return set()
        config = configured(self._base, self._values(point))
        return {
            index
            for index, entry in enumerate(self._excludes)
            if all(value_at(config, path) in values for path, values in entry.items())
        }

    def included(self, values: Mapping[Key, Any]) -> TrialSpec | InvalidTrial:
        """Return the trial of an `include` entry. Its `axes` have the entry's keys, too."""
        config = configured(self._base, values)
        shown = {axis.key: axis.value_in(config) for axis in self.axes}
        shown |= {short_name(path): value for path, value in values.items()}
        return self._trial(values, {key: without_nulls(value) for key, value in shown.items()})

    def _values(self, point: Point) -> dict[Key, Any]:
        return {self._path_of[key]: value for key, value in point.items()}

    def _trial(self, values: Mapping[Key, Any], axes: dict[str, Any]) -> TrialSpec | InvalidTrial:
        """Return a trial, which says what it is compared with besides its own reference."""
        trial = self._resolved(values, axes)
        if isinstance(trial, InvalidTrial):
            return trial
        if trial.workload.command is None:
            sizes = (axis.values or () for axis in self.axes if axis.path == _MICRO_BATCH)
            return with_other_micro_batches(trial, itertools.chain.from_iterable(sizes))
        return with_comparisons(trial, values, self._sweep, lambda point: self._resolved(point, {}))

    def _resolved(self, values: Mapping[Key, Any], axes: dict[str, Any]) -> TrialSpec | InvalidTrial:
        """Return the trial with `values` set, after setting the keys that follow from other keys."""
        sweep = self._sweep
        config = configured(self._base, values)
        key = "engine.engine_python"
        try:
            config = with_environment(config, sweep.environments, sweep.place)
            key = "engine.ds_config"
            config = with_ds_config(config, values.keys(), sweep.place)
            if _STAGE not in values and _STAGE[1] not in sweep.engine.model_fields_set:
                config = with_own_stage(config)
            key = "workload.global_batch_size"
            config = with_accumulation(config)
        except ValueError as error:
            if isinstance(error, SpecError) and ("engine", "ds_config") not in values:
                raise  # an unreadable file is an error of the sweep, unless ds_config is an axis
            return InvalidTrial(axes, config, str(error), config_id(config), key)
        try:
            trial = TrialSpec.model_validate({**config, "axes": axes})
        except ValidationError as error:
            detail = error.errors()[0]
            where = ".".join(str(part) for part in detail["loc"])
            reason = f"{where}: {detail['msg'].removeprefix('Value error, ')}"
            return InvalidTrial(axes, config, reason, config_id(config), where)
        elsewhere = sweep.machine is not None
        gpus = 0 if elsewhere or self._simulated else gpus_to_share(trial.run)
        broken = conflict(
            trial.engine,
            trial.run,
            trial.workload,
            sweep.place,
            elsewhere=elsewhere,
            shared_gpus=gpus,
            simulated=self._simulated,
        )
        return trial if broken is None else trial.invalid(*broken)


def base_config(sweep: SweepSpec) -> dict[str, Any]:
    """Return the configuration that the axes vary, as plain JSON values."""
    config: dict[str, Any] = sweep.model_dump(mode="json", include={"workload", "run", "engine", "verify"})
    return config


def configured(base: dict[str, Any], values: Mapping[Key, Any]) -> dict[str, Any]:
    """Return a copy of `base` with some keys set."""
    config: dict[str, Any] = pickle.loads(pickle.dumps(base))  # 3 times as fast as copy.deepcopy
    for path, value in values.items():
        assign(config, path, value)
    return config


def without_nulls(value: Any) -> Any:
    """Return a block without its null keys, such as those that a parameter group inherits."""
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}


def conflict(
    engine: EngineSpec,
    run: RunSpec,
    workload: WorkloadSpec,
    place: Path | None = None,
    *,
    elsewhere: bool = False,
    shared_gpus: int = 0,
    simulated: bool = False,
) -> tuple[str, str] | None:
    """Return (key to change, reason with its remedy), or None if the combination is valid.

    place: base of relative paths; None: do not check other Python environments and `hf:` models.
    elsewhere: the sweep names a machine, so `run.device: auto` does not mean a device of this one.
    shared_gpus: those of this machine, if it has fewer than the trial has ranks. simulated: no engine runs.
    """
    conflicts = _conflicts(engine, run, workload, place, simulated=simulated)
    return next(itertools.chain(conflicts, _reduction_conflicts(engine, run, elsewhere, shared_gpus)), None)


def _conflicts(
    engine: EngineSpec, run: RunSpec, workload: WorkloadSpec, place: Path | None, *, simulated: bool
) -> Iterator[tuple[str, str]]:
    if problem := nodes_mistake(engine, workload, run.world_size, run.nodes):
        yield "run.nodes", problem
    if workload.command is not None:
        yield from refusals(engine)
        if engine.engine != "builtin":
            yield "engine.engine", "a command brings its own engine; leave engine out"
        python = engine.engine_python
        if python is not None and place is not None and not os.access(executable(python, place), os.X_OK):
            yield "engine.engine_python", f"{python}: no such interpreter; name an environment"
        return
    yield from engine_conflicts(engine)
    yield from peer_conflicts(engine, place, simulated=simulated)
    if place is not None and workload.model.startswith(shapes.PREFIX):
        problem = shapes.mistake(workload.model, place)
        if problem:
            yield "workload.model", problem
    if workload.backwards_per_step > 1 and engine.accumulation_mode == "micro_steps":
        yield (
            "workload.backwards_per_step",
            "several backwards a step need accumulation_mode: multi_backward or unmanaged;"
            " with micro_steps set gradient_accumulation_steps instead",
        )
    if workload.offload_activations and engine.compile != "off":
        yield (
            "workload.offload_activations",
            "a compiled step chooses what it saves; leave offload_activations out, or set compile: off",
        )
    if engine.shard_group_size is not None and run.world_size % engine.shard_group_size:
        yield (
            "engine.shard_group_size",
            f"{run.world_size} ranks do not divide into groups of {engine.shard_group_size};"
            " set a divisor of run.world_size, or leave shard_group_size out",
        )


def _reduction_conflicts(
    engine: EngineSpec, run: RunSpec, elsewhere: bool, shared_gpus: int
) -> Iterator[tuple[str, str]]:
    """Yield why `reduction: backend` cannot be had: ranks on CPUs, or ranks that share a GPU."""
    if engine.engine != "builtin" or engine.reduction != "backend" or run.world_size == 1:
        return
    if run.device == "cpu" if elsewhere else is_on_cpu(run.device):
        yield (
            "engine.reduction",
            "backend: expected ranks on GPUs, whose gradients NCCL adds, found ranks on CPUs (gloo), whose"
            " gradients zbench adds in rank order; set reduction: auto or rank_order, or run.device: cuda",
        )
    if shared_gpus and not ranks_share_by_nccl():
        yield (
            "engine.reduction",
            f"backend: expected a GPU for each of {run.world_size} ranks, whose gradients NCCL adds, found"
            f" {shared_gpus}; set run.world_size: {shared_gpus}, reduction: auto or rank_order, or"
            f" {MULTI_RANK}=1 in the environment, with NCCL 2.30 or later",
        )


def covering(points: Sequence[Mapping[str, Any]], strength: int, seed: int = 0) -> list[int]:
    """Return the sorted indices of a few points that contain every combination that occurs in `points`.

    Most faults depend on two or three settings (Kuhn, Wallace, Gallo: Software Fault Interactions and
    Implications for Software Testing, IEEE TSE 30(6), 2004), so strength 2 or 3 finds them in a small share
    of the product's points.

    points: axis -> value; a missing axis (one that does not apply) counts as a value of its own.
    strength: how many axes make a combination. The algorithm is greedy: it chooses the point with the most
    new combinations, ties at random by `seed`. The number of points is therefore not minimal.
    """
    axes = list(dict.fromkeys(axis for point in points for axis in point))
    groups = list(itertools.combinations(range(len(axes)), min(strength, len(axes))))
    numbers: dict[tuple[object, ...], int] = {}
    held = []  # for each point, the numbers of its combinations
    for point in points:
        texts = [json.dumps(point[axis], sort_keys=True) if axis in point else None for axis in axes]
        combinations = ((group, *(texts[axis] for axis in group)) for group in groups)
        held.append([numbers.setdefault(combination, len(numbers)) for combination in combinations])
    missing = set(numbers.values())
    order = random.Random(seed).sample(range(len(points)), len(points))
    heap = [(-len(groups), place, index) for place, index in enumerate(order)]
    chosen: list[int] = []
    while missing:
        gain, place, index = heap[0]
        now = -len(missing.intersection(held[index]))
        if now != gain:  # points chosen since have covered some of its combinations
            heapq.heapreplace(heap, (now, place, index))
            continue
        heapq.heappop(heap)
        chosen.append(index)
        missing.difference_update(held[index])
    return sorted(chosen)
