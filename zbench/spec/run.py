"""RunSpec and VerifySpec: how a trial is run, timed and judged."""

from typing import Annotated, Literal

from pydantic import Field

from zbench.spec.base import ByteCount, Seconds, SpecModel


class RunSpec(SpecModel):
    """How a trial is run and timed. `threads_per_rank: auto` shares the machine's cores among the ranks."""

    world_size: Annotated[int, Field(ge=1)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    steps: Annotated[int, Field(ge=1)] = 8
    repeats: Annotated[int, Field(ge=1)] = 3
    seed: Annotated[int, Field(ge=0)] = 0
    threads_per_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    timeout: Seconds = 120.0
    memory_limit: ByteCount | None = None


class VerifySpec(SpecModel):
    """`off`, `reference` (bits against plain PyTorch) or `full` (adds the float64 truth and so the error ratio)."""

    mode: Literal["off", "reference", "full"] = "full"
