"""The trials at the points of one sweep; what its points share is validated and compared once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from zbench.errors import SpecError
from zbench.spec.axes import Axis, Point, matching, resolve_axes
from zbench.spec.batch import KEY as BATCH_KEY
from zbench.spec.batch import with_accumulation
from zbench.spec.blocks import BlockCache, InvalidBlock, ValidBlock
from zbench.spec.combinations import conflict, engine_conflict, run_conflict, workload_conflict
from zbench.spec.command import SHAPING
from zbench.spec.ds_config import KEY as DS_KEY
from zbench.spec.ds_config import with_ds_config
from zbench.spec.engine import EngineSpec
from zbench.spec.environments import KEY as ENVIRONMENT_KEY
from zbench.spec.environments import with_environment
from zbench.spec.keys import Path
from zbench.spec.point import base_config, configured, matches, shown_axes, without_nulls
from zbench.spec.run import RunSpec, VerifySpec
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec, config_id, id_of
from zbench.spec.workload import WorkloadSpec

_DS_PATH = tuple(DS_KEY.split("."))


class Blocks(NamedTuple):
    """The four blocks of one configuration."""

    workload: ValidBlock[WorkloadSpec] | InvalidBlock
    run: ValidBlock[RunSpec] | InvalidBlock
    engine: ValidBlock[EngineSpec] | InvalidBlock
    verify: ValidBlock[VerifySpec] | InvalidBlock

    def written(self) -> dict[str, Any]:
        """Return the configuration as it is written."""
        return {block.section: block.written for block in self}


class Points:
    """Makes the trials of one sweep. axes: those of the sweep, resolved already."""

    def __init__(self, sweep: SweepSpec, axes: Sequence[Axis] | None = None) -> None:
        self._sweep, self._base = sweep, base_config(sweep)
        self.axes = resolve_axes(sweep) if axes is None else list(axes)
        self.excludes = list(matching(sweep))
        self._path_of = {axis.key: axis.path for axis in self.axes}
        self._has_nested_axes = any(isinstance(v, dict) for axis in self.axes for v in axis.values or ())
        place, base, rest = sweep.place, self._base, (self.axes, self.excludes)
        self._workloads = BlockCache(
            "workload", sweep.workload, base["workload"], *rest, lambda block: workload_conflict(block, place)
        )
        self._runs = BlockCache("run", sweep.run, base["run"], *rest)
        self._engines = BlockCache(
            "engine", sweep.engine, base["engine"], *rest, lambda block: engine_conflict(block, place)
        )
        self._verifies = BlockCache("verify", sweep.verify, base["verify"], *rest)

    def blocks(self, point: Point) -> Blocks:
        """Return the blocks of a point, keys of an axis -> value."""
        return Blocks(
            self._workloads.at(point), self._runs.at(point), self._engines.at(point), self._verifies.at(point)
        )

    def excluding(self, blocks: Blocks) -> frozenset[int]:
        """Return the indices of the `exclude` entries that match a configuration as it is written."""
        return blocks.engine.excluded_by & blocks.workload.excluded_by & blocks.run.excluded_by

    def is_excluded(self, trial: TrialSpec | InvalidTrial) -> bool:
        """Tell whether an `exclude` entry matches a trial."""
        if isinstance(trial, InvalidTrial):
            return any(matches(trial.config, entry) for entry in self.excludes)
        config = {
            "workload": self._workloads.values_of(trial.workload),
            "run": self._runs.values_of(trial.run),
            "engine": self._engines.values_of(trial.engine),
        }
        return any(matches(config, entry) for entry in self.excludes)

    def trial(self, point: Point, blocks: Blocks | None = None) -> TrialSpec | InvalidTrial:
        """Return the trial at a point; blocks: those of the point, if they are known."""
        blocks = blocks or self.blocks(point)
        shown = {key: point[key] for key in self._path_of if key in point}
        if len(shown) < len(point):
            raise KeyError(f"no axis of the sweep: {sorted(point.keys() - shown.keys())}")
        if self._has_nested_axes:
            shown = {key: without_nulls(value) for key, value in shown.items()}
        if self._is_plain(blocks):
            return self._joined(blocks, shown)
        values = {self._path_of[key]: value for key, value in point.items()}
        return self._trial(blocks, shown, values)

    def included(self, values: Mapping[Path, Any]) -> TrialSpec | InvalidTrial:
        """Return the trial of an `include` entry, whose keys need not be axes."""
        config = configured(self._base, dict(values))
        return self._trial(self._known(config), shown_axes(config, values, self.axes), values)

    def _known(self, config: Mapping[str, Any]) -> Blocks:
        """Return the blocks that are written so."""
        return Blocks(
            self._workloads.of(config["workload"]),
            self._runs.of(config["run"]),
            self._engines.of(config["engine"]),
            self._verifies.of(config["verify"]),
        )

    def _trial(
        self, blocks: Blocks, axes: dict[str, Any], values: Mapping[Path, Any]
    ) -> TrialSpec | InvalidTrial:
        trial = self._resolved(blocks, axes, values)
        if isinstance(trial, InvalidTrial) or trial.workload.command is None:
            return trial
        return self._held(values, trial)

    def _resolved(
        self, blocks: Blocks, axes: dict[str, Any], values: Mapping[Path, Any]
    ) -> TrialSpec | InvalidTrial:
        """Return the trial of blocks, after the keys of one that follow from another were filled in."""
        sweep, config = self._sweep, blocks.written()
        steps: tuple[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
            (ENVIRONMENT_KEY, lambda config: with_environment(config, sweep.environments, sweep.place)),
            (DS_KEY, lambda config: with_ds_config(config, values.keys(), sweep.place)),
            (BATCH_KEY, with_accumulation),
        )
        for key, fill in steps:
            try:
                config = fill(config)
            except ValueError as error:
                if key == DS_KEY and isinstance(error, SpecError) and _DS_PATH not in values:
                    raise  # a file that cannot be read is no point that cannot exist, unless others are tried
                return InvalidTrial(axes, config, str(error), config_id(config), key)
        return self._joined(self._known(config), axes)

    def _is_plain(self, blocks: Blocks) -> bool:
        """Tell whether no key of these blocks may decide others."""
        engine, workload = blocks.engine.written, blocks.workload.written
        return (
            engine.get("engine_python") is None
            and engine.get("ds_config") is None
            and workload.get("global_batch_size") is None
            and workload.get("command") is None
        )

    def _joined(self, blocks: Blocks, axes: dict[str, Any]) -> TrialSpec | InvalidTrial:
        """Return the trial of four blocks; an InvalidTrial where one is invalid, or two do not fit."""
        workload, run, engine, verify = blocks
        if (
            isinstance(workload, InvalidBlock)
            or isinstance(run, InvalidBlock)
            or isinstance(engine, InvalidBlock)
            or isinstance(verify, InvalidBlock)
        ):
            reason = next(block.reason for block in blocks if isinstance(block, InvalidBlock))
            config = blocks.written()
            return InvalidTrial(axes, config, reason, config_id(config))
        valid = (workload, run, engine, verify)
        trial = TrialSpec.model_validate({**{block.section: block.model for block in valid}, "axes": axes})
        trial.__dict__["trial_id"] = id_of({block.section: block.identity for block in valid})
        if workload.model.command is not None:
            found = conflict(engine.model, run.model, workload.model, self._sweep.place)
        else:
            found = (
                engine.conflict or workload.conflict or run_conflict(engine.model, run.model, workload.model)
            )
        if found is None:
            return trial
        key, reason = found
        return InvalidTrial(
            axes, {block.section: block.values for block in valid}, reason, trial.trial_id, key
        )

    def _held(self, values: Mapping[Path, Any], trial: TrialSpec) -> TrialSpec | InvalidTrial:
        """Return a command's trial with the engine keys of the run that it is held against.

        That run is the file's own configuration with the trial's values of whatever changes what is trained.
        """
        if trial.verify.against is not None:
            try:
                trial.held_against()
            except ValidationError as error:
                detail = error.errors()[0]
                reason = f"verify.against: {detail['loc'][-1]}: {detail['msg']}; name keys of engine"
                return InvalidTrial(trial.axes, trial.config(), reason, trial.trial_id, "verify.against")
            return trial
        if trial.verify.mode == "off" or trial.workload.checkpoint is None:
            return trial
        same = {path: value for path, value in values.items() if path[0] != "engine" or path[1] in SHAPING}
        run = self._resolved(self._known(configured(self._base, same)), {}, same)
        if isinstance(run, InvalidTrial):
            reason = f"the run that it is held against cannot exist: {run.reason}; set verify.against"
            return InvalidTrial(trial.axes, trial.config(), reason, trial.trial_id, run.key)
        mine, theirs = trial.config()["engine"], run.config()["engine"]
        other = {key: theirs.get(key) for key in mine | theirs if mine.get(key) != theirs.get(key)}
        return trial.model_copy(update={"verify": trial.verify.model_copy(update={"against": other})})
