"""RunSpec and VerifySpec: how a trial is run, timed and verified."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from zbench.gpus import MULTI_RANK, ranks_share_by_nccl, visible_gpus
from zbench.spec.base import ByteCount, Seconds, Share, SpecModel
from zbench.spec.engine import EngineSpec

MAX_SEED = 2**63 - 1
MAX_THREADS = 4096
"""More compute threads than any machine has cores; OpenMP crashes where it cannot start that many."""


_RANKS = WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]})


RANKS_ON_A_CPU = 2
"""Ranks of `world_size: auto` on a node without a GPU that it may use."""


def ranks_here(nodes: int, device: str) -> int:
    """Return the ranks of `world_size: auto` where every node is as this machine."""
    gpus = 0 if device == "cpu" else len(visible_gpus())
    return (gpus or RANKS_ON_A_CPU) * nodes


AUTO_RANKS: ContextVar[Callable[[int, str], int]] = ContextVar("auto_ranks", default=ranks_here)
"""Returns the ranks of `world_size: auto` from `run.nodes` and `run.device`: nodes of a cluster may differ
from the machine that reads the file."""


def is_on_cpu(device: str) -> bool:
    """Whether `run.device` is the CPU: `auto` is, if this machine runs the trials and has no GPU for them."""
    here = AUTO_RANKS.get() is ranks_here
    return device == "cpu" or (device == "auto" and here and not visible_gpus())


def gpus_to_share(run: "RunSpec") -> int:
    """Return the GPUs of this machine, if it runs the trials and these have more ranks; else 0."""
    here = AUTO_RANKS.get() is ranks_here and run.nodes == 1 and run.device != "cpu"
    gpus = len(visible_gpus()) if here else 0
    return gpus if run.world_size > gpus else 0


def shared_gpus(ranks: int, gpus: int) -> str:
    """Return the warning for more `ranks` on one machine than it has `gpus`."""
    way = f"by NCCL ({MULTI_RANK}=1)" if ranks_share_by_nccl() else "through host memory"
    return (
        f"shared GPU: {ranks} ranks share {gpus} and communicate {way}, so their speed"
        f" is not that of one GPU per rank; set run.world_size: {gpus}, or auto"
    )


def updates_on_gpu(engine: EngineSpec) -> bool:
    """Whether zbench's own Adam updates on a GPU, where ranks have one."""
    return engine.engine == "builtin" and (engine.offload_optimizer == "none" or engine.offload_ratio < 1.0)


SLOW_UPDATE = "slower update: "


def slow_update(reason: str) -> str:
    """Return the warning for GPUs that zbench's own kernels cannot be used on."""
    return f"{SLOW_UPDATE}GPUs use torch's own fused AdamW, apart from norm and casts, because {reason}"


class RunSpec(SpecModel):
    """How a trial is run and timed."""

    world_size: Annotated[int, Field(ge=1), _RANKS] = Field(
        1,
        description="Number of ranks (processes); `auto`: one for each GPU of the nodes, or 2 a node.",
    )
    nodes: int = Field(
        1, ge=1, description="Machines, with equally many ranks each; 2 or more need `--slurm` or `--ray`."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: cuda if available, else cpu.")
    warmup_steps: int = Field(2, ge=0, description="Steps before timing begins.")
    steps: int = Field(8, ge=1, description="Timed steps.")
    evaluate_every: int | None = Field(
        None, ge=1, description="Steps between evaluations (one forward, not timed). Missing: no evaluation."
    )
    repeats: int = Field(
        5, ge=1, description="Runs of each trial from the start; fewer than 5 detect only large differences."
    )
    separate: Share | None = Field(
        None, gt=0, lt=1, description="Repeat until the leaders differ, or are equal within this: `5%`."
    )
    max_repeats: int = Field(20, ge=1, description="Most repeats of a trial with `separate`.")
    order: Literal["auto", "turns", "rounds"] = Field(
        "auto",
        description="`turns`: several configurations run at the same time and take turns; `rounds`: one "
        "after another; `auto`: turns, if at least two can.",
    )
    heat: int = Field(8, ge=2, le=8, description="Most configurations that take turns with one another.")
    yardstick: list[Literal["machine", "alone"]] | Literal["none"] = Field(
        ["machine", "alone"],
        description="What else takes turns: fixed kernels, and plain PyTorch without communication.",
    )
    seed: int = Field(
        0, ge=0, le=MAX_SEED, description="Seed of the model's weights, the data and the trial order."
    )
    threads_per_rank: Annotated[int, Field(ge=1, le=MAX_THREADS)] | Literal["auto"] = Field(
        "auto", description="Compute threads of a rank; `auto` shares the machine's cores among the ranks."
    )
    timeout: Seconds = Field(
        120.0, description="Time after which a trial is ended, such as `120s` or `5min`."
    )
    memory_limit: ByteCount | None = Field(None, description="Largest memory of a rank, such as `2Gi`.")

    def wants(self, yardstick: Literal["machine", "alone"]) -> bool:
        """Whether a yardstick takes turns with the trial."""
        return self.yardstick != "none" and yardstick in self.yardstick

    @model_validator(mode="before")
    @classmethod
    def _count_ranks(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("world_size") != "auto":
            return values
        nodes = values.get("nodes", 1)
        if not isinstance(nodes, int) or nodes < 1:
            return {**values, "world_size": 1}  # its own key is refused
        return {**values, "world_size": AUTO_RANKS.get()(nodes, values.get("device", "auto"))}


class VerifySpec(SpecModel):
    """How the timed run is checked against plain PyTorch."""

    mode: Literal["off", "reference", "full"] = Field(
        "full",
        description="`off`, `reference` (bits against plain PyTorch) or `full` (also a float64 run).",
    )
    against: dict[str, Any] | None = Field(
        None,
        description="Keys of the run to compare a command with. Missing: those of the file.",
    )
    same_training: list[str] = Field(
        [],
        description="Axes that must not change what a command trains: rows that differ are drifted or wrong.",
    )
    base_runs: int = Field(
        2, ge=1, le=2, description="Runs of a command's base; with 1 nothing is judged, and only time counts."
    )
    precise: dict[str, Any] | None = Field(
        None, description="Keys of a more precise run of a command: `{dtype: float32}` of a bfloat16 script."
    )
