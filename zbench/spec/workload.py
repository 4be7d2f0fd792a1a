"""WorkloadSpec: the model and its data, equal for every engine and stage; or the user's training command.

`workload.command` runs the user's training script, without changes to it. The command is a template. `{name}`
stands for a key of the trial (`{world_size}`, `{zero_stage}`, `{lr}`), for one of `workload.parameters`, for
a path or port (`{output}`, `{port}`), or for a file that zbench writes (`{ds_config}`). Write `{{` and `}}`
for braces.
"""

import json
import re
import shlex
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from zbench.errors import nearest
from zbench.spec.base import ElementCount, SpecModel
from zbench.spec.engine import EngineSpec, OptimizerSpec

FILES = {"ds_config": "json", "accelerate_config": "yaml", "training_args": "json"}
"""Files that a command may use -> their suffixes; `worker/script.py` writes them."""
_PLACES = ("output", "port", "steps", "warmup_steps", "world_size", "seed")
_WORKLOAD = ("micro_batch_size", "sequence_length", "global_batch_size")
SHAPING = {
    "gradient_accumulation_steps", "accumulation_mode", "dtype", "grad_accum_dtype", "communication_dtype",
    "initial_loss_scale", "loss_scale_window", "gradient_clipping", "optimizer", "param_groups",
}  # fmt: skip
"""Engine keys that change what is trained: the run that a command is compared with has equal values."""


TIME_GROUPS = ("seconds", "milliseconds", "per_second")
"""Groups of `step_times.regex`, by the unit of their number; per_second: steps."""


class StepTimesSpec(SpecModel):
    """Where the seconds of each step are read: exactly one of `jsonl`, `regex` and `console`."""

    jsonl: str | None = Field(
        None, min_length=1, description="A file of JSON lines, one for each step: `{output}/steps.jsonl`."
    )
    seconds: str = Field("seconds", min_length=1, description="Key of the seconds in a JSON line.")
    regex: str | None = Field(
        None,
        min_length=1,
        description="Matches one console line of each step; a group may be `seconds`, `milliseconds` or"
        " `per_second`.",
    )
    console: Literal["deepspeed", "transformers"] | None = Field(
        None, description="The log of DeepSpeed (steps_per_print: 1) or the Trainer (logging_steps: 1)."
    )

    @field_validator("regex")
    @classmethod
    def _compiles(cls, written: str | None) -> str | None:
        try:
            named = re.compile(written or "").groupindex
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}; correct it") from None
        if unknown := sorted(named.keys() - TIME_GROUPS):
            raise ValueError(f"unknown group {unknown[0]!r}; name it {', '.join(TIME_GROUPS)}")
        return written

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        keys = [name for name in ("jsonl", "regex", "console") if getattr(self, name) is not None]
        if len(keys) != 1:
            sources = " and ".join(keys) or "neither"
            raise ValueError(f"expected one of jsonl, regex and console, got {sources}; name one of them")
        return self


def names_of(template: str) -> set[str]:
    """Return the names in a template. ValueError if its braces do not match."""
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces that enclose no name") from None


def known_names() -> set[str]:
    """Return every name that a template may use, beside the workload's own parameters."""
    engine = {name for name in EngineSpec.model_fields if name not in ("optimizer", "param_groups", "engine")}
    return {*_PLACES, *_WORKLOAD, *FILES, *engine, *OptimizerSpec.model_fields} - {"name"}


def command_mistakes(workload: "WorkloadSpec") -> Iterator[tuple[str, str]]:
    """Yield (key, message) for each mistake in the templates of a command workload."""
    command, times = str(workload.command), workload.step_times
    try:
        if not shlex.split(command):
            yield "workload.command", "the command is empty; write the command line that starts your training"
    except ValueError as error:
        yield "workload.command", f"{error}; quote it as for a shell"
    if times is None:
        yield (
            "workload.step_times",
            "a command needs step_times; name a JSON-lines file, a regular expression or console: deepspeed",
        )
    for key, template in (
        ("workload.command", command),
        ("workload.step_times.jsonl", times.jsonl if times is not None else None),
        ("workload.checkpoint", workload.checkpoint),
    ):
        known = known_names() | workload.parameters.keys()
        try:
            for name in sorted(names_of(template or "") - known):
                hint = nearest(name, sorted(known))
                yield (
                    key,
                    f"unknown name {{{name}}}{hint}; use a key of workload, run or engine, or declare the"
                    f" script's own flag as workload.parameters: {{{name}: VALUE}}",
                )
        except ValueError as error:
            yield key, str(error)


def values_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return name -> value for the templates of a trial, without files, `output` and `port`."""
    engine, run, workload = config["engine"], config["run"], config["workload"]
    values = {**engine["optimizer"], **{k: v for k, v in engine.items() if not isinstance(v, dict)}}
    values |= {name: workload.get(name) for name in _WORKLOAD}
    values |= {name: run[name] for name in ("world_size", "seed", "warmup_steps")}
    values |= workload["parameters"]
    return values | {"steps": run["warmup_steps"] + run["steps"]}


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with its values: booleans as `true` or `false`, lists as JSON, None as empty text."""
    return template.format_map({name: _text(value) for name, value in values.items()})


def words(template: str, values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command. It is split before values are inserted, so a value stays one word.

    A word that is `{name}` alone is left out if the value is empty text, as of a switch that is off.
    """
    switches = {f"{{{name}}}" for name, value in values.items() if value == ""}
    return [rendered(word, values) for word in shlex.split(template) if word not in switches]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


ParameterValue = bool | int | float | str
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
MODULE_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class DataSpec(SpecModel):
    """Where micro-batches come from: exactly one of `text`, `synthetic` and `dataset`."""

    text: str | None = Field(
        None, min_length=1, description="A file whose bytes are the tokens, relative to the sweep file."
    )
    synthetic: bool = Field(False, description="Seeded random tokens.")
    dataset: str | None = Field(
        None, min_length=1, description="`module:callable` that returns your torch Dataset or DataLoader."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        presence = [self.text is not None, self.synthetic, self.dataset is not None]
        if sum(presence) != 1:
            sources = {0: "neither", 2: "both"}.get(sum(presence), "all")
            other = ", `dataset: MODULE:CALLABLE`" if self.dataset is not None else ""
            raise ValueError(
                f"expected either `text: PATH` or `synthetic: true`{other}, got {sources}; keep one"
            )
        return self


class WorkloadSpec(SpecModel):
    """The model, its data and the size of one micro-batch on one rank."""

    model: str = Field(
        "gpt", min_length=1, description="`gpt`, `mlp`, `hf:NAME_OR_PATH`, or your own as `module:callable`."
    )
    preset: str | None = Field(None, description="A named size of `gpt`: nano, micro, tiny, ... xl.")
    options: dict[str, Any] = Field(
        {}, description="Sizes that override the preset's, or arguments of your own model."
    )
    loss: str | None = Field(
        None, min_length=1, description="`module:callable(model, batch)` that returns the scalar loss."
    )
    data: DataSpec = Field(DataSpec(synthetic=True), description="Source of the training data.")
    sequence_length: ElementCount = Field(128, description="Tokens in one sequence.")
    micro_batch_size: ElementCount = Field(2, description="Sequences in one micro-batch on one rank.")
    global_batch_size: ElementCount | None = Field(
        None, description="Sequences in one step over all ranks; determines gradient accumulation."
    )
    backwards_per_step: int = Field(
        1, ge=1, description="Backward calls in one step, if the engine does not count micro-batches."
    )
    loss_weighting: Literal["mean", "tokens"] = Field(
        "mean", description="Weight of a micro-batch in a step's gradient: equal, or by its `tokens`."
    )
    command: str | None = Field(
        None, min_length=1, description="Your own training script, such as `python train.py {zero_stage}`."
    )
    parameters: dict[str, ParameterValue] = Field(
        {}, description="Flags of your own script: name -> number, boolean or text, used as `{name}`."
    )
    step_times: StepTimesSpec | None = Field(None, description="Where to read a command's step times.")
    checkpoint: str | None = Field(
        None, min_length=1, description="Checkpoint that the command saves at its end: `{output}/model`."
    )
    activation_checkpointing: bool | Literal["selective"] = Field(
        False,
        description="Recompute activations in backward; `selective`: all but matrix products and attention.",
    )
    checkpointed_classes: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Classes of your model's blocks to checkpoint. Missing: the entries of module lists."
    )
    offload_activations: bool = Field(
        False, description="Keep what the forward saves for the backward in host memory; weights stay."
    )
    loss_chunks: int = Field(
        1, ge=1, description="Parts of a micro-batch whose logits exist at once: `gpt` and `hf:` only."
    )

    def micro_batches_of(self, world_size: int) -> int:
        """Return the micro-batches of a rank that share its samples of a step; 1 without a global batch."""
        if self.global_batch_size is None:
            return 1
        return max(1, self.global_batch_size // (self.micro_batch_size * world_size))

    @field_validator("parameters")
    @classmethod
    def _own_names(cls, parameters: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        for name in parameters:
            if not _PARAMETER.fullmatch(name):
                raise ValueError(f"expected a name of letters, digits and _, got {name!r}; rename it")
            if name in known_names():
                raise ValueError(f"{{{name}}} is a key of zbench; set that key, or choose another name")
        return parameters
