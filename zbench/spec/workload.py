"""WorkloadSpec: which model is trained on which data. Identical on every engine and stage."""

import re
from typing import Any, Self

from pydantic import Field, model_validator

from zbench.spec.base import ElementCount, SpecModel
from zbench.spec.command import StepTimesSpec

MODULE_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class DataSpec(SpecModel):
    """Where micro-batches come from: exactly one of `text`, `synthetic` and `dataset`."""

    text: str | None = Field(
        None, min_length=1, description="A file whose bytes are the tokens; relative to the sweep file."
    )
    synthetic: bool = Field(False, description="Seeded random tokens.")
    dataset: str | None = Field(
        None, min_length=1, description="`module:callable` that returns your torch Dataset or DataLoader."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [self.text is not None, self.synthetic, self.dataset is not None]
        if sum(given) != 1:
            sources = {0: "neither", 2: "both"}.get(sum(given), "all")
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
        {}, description="Sizes that override the preset, or arguments of your model."
    )
    loss: str | None = Field(
        None, min_length=1, description="`module:callable(model, batch)` that returns the scalar loss."
    )
    data: DataSpec = Field(DataSpec(synthetic=True), description="Where tokens come from.")
    sequence_length: ElementCount = Field(128, description="Tokens in one sequence.")
    micro_batch_size: ElementCount = Field(2, description="Sequences in one micro-batch on one rank.")
    global_batch_size: ElementCount | None = Field(
        None, description="Sequences in one step over all ranks; gradient accumulation follows from it."
    )
    backwards_per_step: int = Field(
        1, ge=1, description="Backward calls in one step where the engine does not count micro-batches."
    )
    command: str | None = Field(
        None, min_length=1, description="Your own training script, such as `python train.py {zero_stage}`."
    )
    step_times: StepTimesSpec | None = Field(None, description="Where a command's step times are read.")
    checkpoint: str | None = Field(
        None, min_length=1, description="What the command saves last and is judged by: `{output}/model`."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in backward instead of keeping them."
    )
