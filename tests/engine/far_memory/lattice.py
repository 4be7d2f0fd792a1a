"""Which schedules are run over far memory, and the check that each leaves the bits of plain PyTorch."""

import random
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tests.engine import lattice
from tests.engine.far_memory.cases import Case
from tests.engine.plain import Trajectory
from zbench.testing.ranks import RankPool


def check(ranks: RankPool, cases: Sequence[Case]) -> int:
    """Run the cases, each group of one world size in one call; return how many copies were late."""
    late = 0
    for world_size, group in groupby(sorted(cases, key=lambda c: c.world_size), key=lambda c: c.world_size):
        of_world = list(group)
        answers = ranks.run(world_size, "tests.engine.far_memory.cases:run", of_world)
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
    "accumulation": lattice.CHOICES["accumulation"],
    "reduce_at": lattice.CHOICES["reduce_at"],
    "overlap": lattice.CHOICES["overlap"],
    "optimizer": lattice.CHOICES["optimizer"],
    "sizes": [{}, {"sub_group_size": 512}, *lattice.CHOICES["sizes"]],
    "residents": lattice.CHOICES["residents"],
    "clipping": [{}, {"gradient_clipping": 0.1}, {"gradient_clipping": 1e6}],
    "dtypes": [*lattice.CHOICES["dtypes"], {"dtype": "float16", "loss_scale_window": 1}],
}
RATIOS: list[dict[str, Any]] = [{}, {}, {"offload_ratio": 0.5}, {"offload_ratio": 0.0}]
MODELS = ["mlp", "mlp", "gpt", "odd-together", "wandering"]
CHANGES = ["nothing", "schedule"]
FREEZING = ["nothing", "schedule", "thaw"]
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
    changes = FREEZING if model == "odd-together" else CHANGES
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
