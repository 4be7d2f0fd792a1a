"""TrialSpec: one fully resolved configuration, its ID, and how it accumulates gradients."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from pydantic import Field

from zbench.spec.base import SpecModel
from zbench.spec.combinations import SHARDED_BUILDERS
from zbench.spec.engine import EngineSpec
from zbench.spec.keys import assign, resolve_key
from zbench.spec.run import RunSpec, VerifySpec
from zbench.spec.shapes import PREFIX
from zbench.spec.workload import WorkloadSpec

NOT_IDENTITY = frozenset(
    {
        "repeats", "separate", "max_repeats", "order", "heat", "yardstick", "timeout",
        "memory_limit",
    }
)  # fmt: skip
"""Keys of `run` that the trial ID ignores: they change how trials are repeated, ordered and limited."""


def config_id(config: Mapping[str, Any]) -> str:
    """Return 12 hex digits of SHA-256 over the canonical JSON of a configuration without `NOT_IDENTITY`.

    The IDs of trials leave out keys at their defaults; that of a point which no trial can be has all keys.
    """
    run = {key: value for key, value in config.get("run", {}).items() if key not in NOT_IDENTITY}
    canonical = json.dumps({**config, "run": run}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def nodes_mistake(engine: EngineSpec, workload: WorkloadSpec, ranks: int, nodes: int) -> str | None:
    """Return why so many ranks cannot be on so many nodes, with the remedy; None where they can."""
    if ranks % nodes:
        return (
            f"{ranks} ranks cannot be shared out evenly among {nodes} nodes; set a divisor of run.world_size,"
            " or leave run.nodes out"
        )
    if nodes > 1 and (workload.command is not None or engine.engine_python is not None):
        return "workload.command and engine.engine_python start ranks on one node; leave run.nodes out"
    return None


class TrialSpec(SpecModel):
    """One point of a sweep. `axes` holds the varied keys and their values, for display and matching."""

    workload: WorkloadSpec
    run: RunSpec
    engine: EngineSpec
    verify: VerifySpec = VerifySpec()
    axes: dict[str, Any] = Field({}, description="The varied keys and their values.")
    base_row: dict[str, Any] | None = Field(None, description="The base row's values of keys that differ.")

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration as plain JSON values, without `axes` and `base_row`."""
        return self.model_dump(mode="json", exclude={"axes", "base_row"})

    def invalid(self, key: str, reason: str) -> "InvalidTrial":
        """Return this trial as invalid. key: the key to change. reason: with its remedy."""
        return InvalidTrial(self.axes, self.config(), reason, self.trial_id, key)

    def held_against(self) -> "TrialSpec":
        """Return the trial to compare a command's trial with: the same, with the keys of `verify.against`.

        ValueError if these are not valid keys and values.
        """
        return self._with(self.verify.against or {})

    def compared_row(self) -> "TrialSpec | None":
        """Return the base row that a trial is compared with, too; None if there is none."""
        return None if self.base_row is None else self._with(self.base_row)

    def precise_run(self) -> "TrialSpec | None":
        """Return the more precise run that `verify.precise` names, if any."""
        return None if self.verify.precise is None else self._with(self.verify.precise)

    def _with(self, values: Mapping[str, Any]) -> "TrialSpec":
        """Return this trial with other values of some keys, compared with nothing."""
        config = self.config()
        for key, value in values.items():
            assign(config, resolve_key(key, self.workload.parameters), value)
        for section in ("workload", "run", "engine"):  # a value that is missing is its default
            config[section] = {key: value for key, value in config[section].items() if value is not None}
        config["verify"] |= {"against": None, "same_training": []}
        return TrialSpec.model_validate(config)

    @cached_property
    def trial_id(self) -> str:
        """Return the ID (12 hex digits) of all keys that change the computation; see `config_id`.

        Keys at their defaults are left out, so a new key in a later version changes no ID.
        """
        return config_id(self.model_dump(mode="json", exclude={"axes", "base_row"}, exclude_defaults=True))

    def __copy__(self) -> Self:
        """Return a copy without the cached ID, because `model_copy` changes keys of the copy."""
        copied = super().__copy__()
        copied.__dict__.pop("trial_id", None)
        return copied


@dataclass(frozen=True, slots=True)
class InvalidTrial:
    """An invalid point and the reason. It is recorded with outcome `invalid` and never launched.

    key: the key to change, such as `engine.zero_stage`.
    """

    axes: dict[str, Any]
    config: dict[str, Any]
    reason: str
    trial_id: str
    key: str = ""

    def document(self) -> dict[str, Any]:
        """Return its entry in a `--json` document."""
        return {"trial_id": self.trial_id, "axes": self.axes, "key": self.key, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Gradient accumulation in one optimizer step of one rank.

    backwards: micro-batches per step. averaged_over: the engine's divisor of their gradient sum; it is 1 if
    the engine does not count them, and the caller then divides each loss by `backwards`. each_backward:
    gradients are reduced over ranks in each backward, not once per step.
    """

    backwards: int
    averaged_over: int
    each_backward: bool

    @property
    def loss_divisor(self) -> int:
        """Return the caller's divisor of each loss. With it every mode trains on the micro-batches' mean."""
        return self.backwards // self.averaged_over


def builds_sharded(trial: "TrialSpec") -> bool:
    """Return whether a trial's model is made in shards: with `auto` where that saves memory, unless it is the
    user's own code, which may read what is not there.
    """
    engine, model = trial.engine, trial.workload.model
    if engine.build != "auto":
        return engine.build == "sharded"
    saves = engine.engine == "fsdp2" or engine.zero_stage == 3 or engine.offload_optimizer == "cpu"
    is_known = ":" not in model or model.startswith(PREFIX)
    return engine.engine in SHARDED_BUILDERS and saves and is_known


def accumulation(engine: EngineSpec, workload: WorkloadSpec) -> Accumulation:
    """Return how a trial accumulates. With one backward per step, `each_backward` makes no difference.

    `reduce_at: auto` is the boundary at stages 0 and 1, also with offload, so that offload changes no bit.
    """
    counted = engine.accumulation_mode == "micro_steps"
    backwards = engine.gradient_accumulation_steps if counted else workload.backwards_per_step
    each = engine.zero_stage >= 2 if engine.reduce_at == "auto" else engine.reduce_at == "each_backward"
    return Accumulation(backwards, backwards if counted else 1, each and backwards > 1)


def has_tokens(trial: TrialSpec) -> bool:
    """Return whether the sequence length is one of tokens: not with a model or data of one's own."""
    workload = trial.workload
    return ":" not in workload.model.removeprefix("hf:") and workload.data.dataset is None


def ranks_of_a_node(trial: TrialSpec) -> int:
    """Return the most ranks that share a node's host."""
    return math.ceil(trial.run.world_size / trial.run.nodes)


def samples_per_step(trial: TrialSpec) -> int:
    """Return the samples of one step over all ranks."""
    backwards = accumulation(trial.engine, trial.workload).backwards
    return trial.workload.micro_batch_size * trial.run.world_size * backwards


def with_accumulation(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the micro-batches per step that `global_batch_size` needs, if it is set.

    ValueError, with the remedy, if that is not a whole number or the configuration sets another number.
    """
    workload, engine = config["workload"], config["engine"]
    total = workload.get("global_batch_size")
    if total is None:
        return config
    size, ranks = workload["micro_batch_size"], config["run"]["world_size"]
    if total % (size * ranks):
        raise ValueError(
            f"{total} is not a multiple of micro_batch_size x world_size ({size} x {ranks} = {size * ranks});"
            " change one of them"
        )
    steps = total // (size * ranks)
    counted = engine["accumulation_mode"] == "micro_steps"
    section, key = (
        ("engine", "gradient_accumulation_steps") if counted else ("workload", "backwards_per_step")
    )
    if config[section][key] not in (1, steps):
        raise ValueError(
            f"{total} over {ranks} ranks of {size} needs {key}: {steps}, got {config[section][key]};"
            f" leave {key} out, it follows from global_batch_size"
        )
    return {**config, section: {**config[section], key: steps}}
