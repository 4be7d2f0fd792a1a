"""WorkloadSpec: which model is trained on which data. Identical on every engine and stage."""

from typing import Any, Self

from pydantic import Field, model_validator

from zbench.spec.base import ElementCount, SpecModel


class DataSpec(SpecModel):
    """Where tokens come from: exactly one of `text` and `synthetic`."""

    text: str | None = Field(
        None, min_length=1, description="A file whose bytes are the tokens; relative to the sweep file."
    )
    synthetic: bool = Field(False, description="Seeded random tokens.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.text is not None) == self.synthetic:
            found = "both" if self.synthetic else "neither"
            raise ValueError(f"expected either `text: PATH` or `synthetic: true`, got {found}; keep one")
        return self


class WorkloadSpec(SpecModel):
    """The model, its data and the size of one micro-batch on one rank."""

    model: str = Field("gpt", min_length=1, description="`gpt`, `mlp`, or your own as `module:callable`.")
    preset: str | None = Field(None, description="A named size of `gpt`: nano, micro, tiny, ... xl.")
    options: dict[str, Any] = Field(
        {}, description="Sizes that override the preset, or arguments of your model."
    )
    data: DataSpec = Field(DataSpec(synthetic=True), description="Where tokens come from.")
    sequence_length: ElementCount = Field(128, description="Tokens in one sequence.")
    micro_batch_size: ElementCount = Field(2, description="Sequences in one micro-batch on one rank.")
    backwards_per_step: int = Field(
        1, ge=1, description="Backward calls in one step where the engine does not count micro-batches."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in backward instead of keeping them."
    )
