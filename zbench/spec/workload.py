"""WorkloadSpec: which model is trained on which data. Identical on every engine and stage."""

from typing import Annotated, Any, Literal

from pydantic import Field

from zbench.spec.base import ElementCount, SpecModel


class DataSpec(SpecModel):
    """`synthetic: true` (seeded tokens) or `text: PATH` (bytes of a file, relative to the sweep file)."""

    text: str | None = None
    synthetic: bool = False


class WorkloadSpec(SpecModel):
    """The model, its data and the size of one micro-batch on one rank."""

    model: str = "gpt"
    preset: str | None = None
    options: dict[str, Any] = {}
    data: DataSpec = DataSpec(synthetic=True)
    sequence_length: ElementCount = 128
    micro_batch_size: ElementCount = 2
    backwards_per_step: Annotated[int, Field(ge=1)] = 1
    activation_checkpointing: bool = False
