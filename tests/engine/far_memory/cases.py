"""Training over far memory: which schedules are run, many in one process group, and that each leaves the bits
of plain PyTorch.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.engine import lattice, models
from tests.engine.cases import CHANGES, train
from tests.engine.far_memory.copies import Copies, FarCollectives, FarMemory
from tests.engine.plain import Trajectory
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.memory.kinds import DeviceMemory, Memories
from zbench.engine.transport import choose
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool


@dataclass(frozen=True)
class Case:
    """One run. seed: draws when copies complete. resume: the step before which a saved state is loaded, by
    another engine or (even seeds) by the same one: behind another state (2, 6, ...), or after all its weights
    were overwritten.
    staged: collectives go through the far memory, as gloo's do for tensors of a device.
    sockets: ranks do not read one another's memory. late: `change` is made behind a step's backwards.
    dawdling: how often threads are late. A model on a card (`models`) has the card's own memory instead.
    """

    spec: dict[str, Any]
    seed: int
    world_size: int = 2
    model: str = "mlp"
    steps: int = 3
    backwards: int = 1
    change: str = "nothing"
    disturb: str = ""
    resume: int = -1
    staged: bool = False
    sockets: bool = False
    late: bool = False
    dawdling: float = 0.05


@dataclass
class Result:
    """A rank's trajectory, what the engine did to copies under way, or how it failed."""

    trajectory: Trajectory
    faults: list[str] = field(default_factory=list)
    copies: int = 0


def run(group: dist.ProcessGroup, cases: Sequence[Case]) -> list[Result]:
    """Run every case, one after another; what was compiled for earlier ones is forgotten."""
    torch._dynamo.reset()
    return [_run(group, case) for case in cases]


def far(copies: Copies, staging: Copies | None) -> Instruments:
    """Return what puts an engine's offloaded state behind late copies, and its collectives too; with
    `staging`, these go through host memory.
    """

    def late(inner: Any) -> Any:
        if staging is not None and inner.world_size > 1:
            inner = HostStagedCollectives(inner, FarMemory(staging))
        return FarCollectives(inner, copies)

    return Instruments(
        wrap_collectives=late,
        memories=lambda device: Memories(DeviceMemory(device), FarMemory(copies)),
    )


def _run(group: dist.ProcessGroup, case: Case) -> Result:
    seeds = [4 * case.seed + 2 * k + dist.get_rank(group) for k in range(2)]
    copies, staging = (Copies(seed, dawdling=case.dawdling) for seed in seeds)
    through = staging if case.staged else None

    def build() -> Engine:
        spec = EngineSpec.model_validate(case.spec)
        probe = (lambda group, memory: None) if case.sockets else choose.probe_peers
        with mock.patch.object(choose, "probe_peers", probe):
            instruments = None if "@" in case.model else far(copies, through)
            return build_engine(models.make(case.model), spec, group, instruments=instruments)

    def resumed(step: int, engine: Engine) -> Engine:
        if step != case.resume:
            return engine
        state = engine.state_dict()
        if case.seed % 2:
            engine.close()
            engine = build()
            CHANGES[case.change](step, engine.model, engine.param_groups)  # before the load
        elif case.seed % 4 == 2:
            engine.load_state_dict({key: value + 1 if value.ndim else value for key, value in state.items()})
        else:
            _overwrite(engine)
        engine.load_state_dict(state)
        return engine

    how = {key: getattr(case, key) for key in ("steps", "backwards", "change", "disturb", "late")}
    try:
        trajectory = train(build(), case.model, dist.get_rank(group), resumed=resumed, **how)
    finally:
        faults = copies.close() + staging.close()
    return Result(trajectory, faults, copies.started + staging.started)


def _overwrite(engine: Engine) -> None:
    """Give every parameter other values, frozen ones included."""
    with engine.gathered(engine.model, write=True), torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.add_(1.0)


def check(ranks: RankPool, cases: Sequence[Case]) -> int:
    """Run the cases, each group of one world size in one call; return how many copies were late."""
    late = 0
    for world_size, group in groupby(sorted(cases, key=lambda c: c.world_size), key=lambda c: c.world_size):
        of_world = list(group)
        answers = ranks.run(world_size, f"{__name__}:run", of_world)
        for of_rank in answers:
            for case, result in zip(of_world, of_rank, strict=True):
                assert not result.faults, f"{'; '.join(result.faults[:3])} at {case}"
                lattice.compare(case.spec, result.trajectory, expected(case), f"{case}")
                late += result.copies
    return late


def expected(case: Case) -> Trajectory:
    """Return plain PyTorch's trajectory."""
    options = repr(lattice.reference_options(case.spec))
    return lattice.reference(case.model, case.world_size, case.backwards, options, case.change, case.steps)


OFFLOADED: dict[str, Any] = {"offload_optimizer": "cpu"}
SPECULATIVE: dict[str, Any] = {**OFFLOADED, "offload_schedule": "speculative"}
ROWS: list[dict[str, Any]] = [
    *({"zero_stage": stage} for stage in (0, 1, 2, 3)),
    *({"zero_stage": stage, **OFFLOADED} for stage in (1, 2, 3)),
    {"zero_stage": 3, "offload_param": "cpu"},
    {"zero_stage": 3, **OFFLOADED, "offload_param": "cpu"},
    *({"zero_stage": stage, **SPECULATIVE} for stage in (1, 2, 3)),
    *({"zero_stage": stage, **SPECULATIVE, "rollback": "journal"} for stage in (1, 2, 3)),
    {"zero_stage": 3, **SPECULATIVE, "offload_param": "cpu"},
    {"zero_stage": 3, **SPECULATIVE, "offload_param": "cpu", "rollback": "journal"},
    {"zero_stage": 1, **OFFLOADED, "compile": "aot_eager"},
]
COMPILED: dict[str, list[dict[str, Any]]] = {
    "accumulation": [
        {"gradient_accumulation_steps": 3},
        {"accumulation_mode": "multi_backward", "backwards": 3},
    ],
    "reduce_at": [{"reduce_at": "boundary"}],
}
"""What a compiled step can do; of one backward it would be seen less."""
CHOICES: dict[str, list[dict[str, Any]]] = {
    **{name: lattice.CHOICES[name] for name in ("accumulation", "reduce_at", "overlap", "optimizer")},
    "sizes": [{}, {"sub_group_size": 512}, *lattice.CHOICES["sizes"]],
    "residents": lattice.CHOICES["residents"],
    "clipping": [{}, {"gradient_clipping": 0.1}, {"gradient_clipping": 1e6}],
    "dtypes": [*lattice.CHOICES["dtypes"], {"dtype": "float16", "loss_scale_window": 1}],
}
RATIOS: list[dict[str, Any]] = [{}, {}, {"offload_ratio": 0.5}, {"offload_ratio": 0.0}]
MODELS = ["mlp", "mlp", "gpt", "odd-together", "wandering"]
DISTURBANCES = ["", "", "backward", "interrupt", "forward", "evaluate", "read", "write", "discard"]
DISTURBANCES += ["discard,backward", "evaluate,backward"]


def drawn(seed: int) -> Case:
    """Return a case of which everything is drawn from the seed, but the row: every row's turn comes."""
    draw = random.Random(seed)
    spec = dict(ROWS[seed % len(ROWS)])
    compiled = "compile" in spec
    if "offload_optimizer" in spec:
        spec |= draw.choice(RATIOS)
    for values in (CHOICES | COMPILED if compiled else CHOICES).values():
        spec |= draw.choice(values)
    backwards = spec.pop("backwards", spec.get("gradient_accumulation_steps", 1))
    model = "mlp" if compiled else draw.choice(MODELS)
    changes = [change for change in CHANGES if change != "thaw" or model == "odd-together"]
    world_size, change = draw.choice((1, 2, 2, 2, 3)), draw.choice(changes)
    disturb = "" if compiled else draw.choice(DISTURBANCES + ["discard sums"] * (backwards > 1))
    return Case(
        spec,
        seed,
        world_size=world_size,
        model=model,
        backwards=backwards,
        change=change,
        disturb=disturb,
        resume=draw.choice((-1, -1, 1, 2)),
        staged=draw.random() < 0.25,
        sockets=draw.random() < 0.3,
    )


_FROZEN: dict[str, Any] = {"zero_stage": 3, "offload_param": "cpu", "param_persistence_threshold": 0}
_LATE: dict[str, Any] = {"zero_stage": 2, **SPECULATIVE, "reduce_bucket_size": 10**6}
_SUMMED: dict[str, Any] = {"zero_stage": 1, **OFFLOADED, "gradient_accumulation_steps": 3}
_COMPILED: dict[str, Any] = {**ROWS[-1], "gradient_accumulation_steps": 3, "reduce_bucket_size": 700}
_ROUNDING: dict[str, Any] = {
    **OFFLOADED,
    "accumulation_mode": "unmanaged",
    "reduce_at": "boundary",
    "grad_accum_dtype": "bfloat16",
}
CHOSEN = (
    # a backward fails while buckets are being reduced
    *(Case({"zero_stage": 2, "reduce_bucket_size": 600}, seed, disturb="backward") for seed in (0, 1)),
    # frozen parameters that stay gathered are overwritten before a state is loaded
    Case({"zero_stage": 3, "param_persistence_threshold": 10**6}, 0, model="odd-together", resume=1),
    # weights are overwritten while the host's values may still be on their way to the device
    *(Case({"zero_stage": 3, "offload_param": "cpu", **OFFLOADED}, seed, resume=1) for seed in (4, 8)),
    # a state is loaded while frozen values may still be on their way to the device
    *(Case(_FROZEN, seed, model="odd-together", resume=1) for seed in (2, 6)),
    # hyperparameters change while updates with the old ones may still be running
    *(Case(_LATE, seed, change="schedule", late=True) for seed in range(4)),
    # gradients of a step that may have one backward or several are not rounded before the second one comes
    *(Case({"zero_stage": stage, **_ROUNDING}, 0, backwards=n) for stage in (1, 3) for n in (1, 2)),
    Case({"zero_stage": 1, **_ROUNDING}, 0, model="wandering", backwards=3),
    # a step is discarded while its first sums may still be added up in host memory, and a new one begins
    *(Case(_SUMMED, seed, backwards=3, disturb="discard sums", dawdling=0.5) for seed in range(4)),
    # compiled code's reduced gradients may still be on their way to the host when the step is taken
    *(Case(_COMPILED, seed, backwards=3, dawdling=0.5) for seed in range(2)),
)
"""What drawn cases seldom do."""
