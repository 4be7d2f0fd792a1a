"""The lattice of configurations, and the check that one of them leaves the bits of plain PyTorch."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from tests.engine import models
from tests.engine.cases import CHANGES
from tests.engine.plain import Options, PlainTrainer, Trajectory
from zbench.testing.ranks import RankPool

STEPS = 3
NO_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PLACES = ["", pytest.param("@cuda", marks=[pytest.mark.cuda, NO_CARD])]
"""What a model's name ends in; see `models`."""
ROWS = [
    {"zero_stage": 0},
    {"zero_stage": 1},
    {"zero_stage": 1, "offload_optimizer": "cpu"},
    {"zero_stage": 2},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
    {"zero_stage": 3},
    {"zero_stage": 3, "offload_optimizer": "cpu"},
    {"zero_stage": 3, "offload_param": "cpu"},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
]
SPECULATIVE = {"offload_optimizer": "cpu", "offload_schedule": "speculative", "sub_group_size": 600}
SPECULATIVE_ROWS: list[dict[str, Any]] = [{"zero_stage": stage, **SPECULATIVE} for stage in (1, 2, 3)]
EVERY_ROW = [*ROWS, *SPECULATIVE_ROWS]
SHARED_OUT: list[dict[str, Any]] = [
    {"zero_stage": 1, **SPECULATIVE, "rollback": "journal"},
    {"zero_stage": 2, **SPECULATIVE, "offload_ratio": 0.25},
    {"zero_stage": 3, **SPECULATIVE, "offload_param": "cpu", "rollback": "journal", "offload_ratio": 0.7},
]
ALL = [*EVERY_ROW, *SHARED_OUT]
SIZES = {"reduce_bucket_size": 900, "allgather_bucket_size": 700, "param_persistence_threshold": 30}
CHOICES: dict[str, list[dict[str, Any]]] = {
    "clipping": [{}, {"gradient_clipping": 0.1}],
    "accumulation": [
        {},
        {"gradient_accumulation_steps": 3},
        {"accumulation_mode": "multi_backward", "backwards": 1},
        {"accumulation_mode": "multi_backward", "backwards": 3},
        {"accumulation_mode": "unmanaged", "backwards": 1},
        {"accumulation_mode": "unmanaged", "backwards": 3},
    ],
    "reduce_at": [{}, {"reduce_at": "boundary"}, {"reduce_at": "each_backward"}],
    "sizes": [
        {"reduce_bucket_size": 1, "allgather_bucket_size": 1, "sub_group_size": 1},
        {"reduce_bucket_size": 1500, "allgather_bucket_size": 700, "sub_group_size": 900},
        {"reduce_bucket_size": 700, "allgather_bucket_size": 10**8},
        {"reduce_bucket_size": 10**8, "allgather_bucket_size": 1000},
    ],
    "overlap": [{}, {"overlap_comm": False}, {"prefetch_bucket_size": 1}, {"prefetch_bucket_size": 2000}],
    "residents": [{"param_persistence_threshold": 0}, {"param_persistence_threshold": 100}, {}],
    "dtypes": [
        {},
        {"grad_accum_dtype": "bfloat16"},
        {"communication_dtype": "bfloat16"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "communication_dtype": "float32"},
        {"dtype": "bfloat16", "grad_accum_dtype": "bfloat16"},
    ],
    "optimizer": [
        {},
        {"optimizer": {"name": "adam", "amsgrad": True, "weight_decay": 0.1}},
        {
            "param_groups": {
                "*bias": {"weight_decay": 0.0, "lr": 3e-3},
                "*.weight": {"betas": (0.8, 0.95), "eps": 1e-6},
            }
        },
    ],
}


def row_id(row: dict[str, Any]) -> str:
    """Return a short name of a row."""
    return "-".join(str(value) for value in row.values())


def rows_of(usual: Callable[[int], bool]) -> Any:
    """Return parameters `k` of a test, each the number of a row; `make check` has those not `usual`."""
    rows = [
        pytest.param(k, id=row_id(row), marks=[] if usual(k) else pytest.mark.check)
        for k, row in enumerate(EVERY_ROW)
    ]
    return pytest.mark.parametrize("k", rows)


@cache
def reference(
    model: str, world_size: int, backwards: int, options: str, change: str, steps: int
) -> Trajectory:
    """Return the plain trajectory; `options` is the repr of a dict."""
    keys: dict[str, Any] = eval(options)
    plan = Options(**keys.pop("plan"))
    trainer = PlainTrainer(models.make(model), world_size=world_size, plan=plan, **keys)
    for step in range(steps):
        CHANGES[change](step, trainer.model, trainer.torch_groups)
        micros = [[models.batch(model, step, m, r) for r in range(world_size)] for m in range(backwards)]
        trainer.step(models.loss, micros)
    return trainer.trajectory()


def reference_options(spec: dict[str, Any]) -> dict[str, Any]:
    """Return how the reference trains what `spec` describes."""
    auto = spec["zero_stage"] >= 2
    each = {"boundary": False, "each_backward": True}.get(spec.get("reduce_at", ""), auto)
    same = ("dtype", "grad_accum_dtype", "communication_dtype", "initial_loss_scale", "loss_scale_window")
    plan = {
        "max_norm": spec.get("gradient_clipping", 0.0),
        "divisor": spec.get("gradient_accumulation_steps", 1),
        "each_backward": each,
        "group_size": spec.get("shard_group_size"),
        **{key: spec[key] for key in same if key in spec},
    }
    return {
        "optimizer": {"lr": 1e-3, **spec.get("optimizer", {})},
        "groups": spec.get("param_groups"),
        "plan": plan,
    }


def check(
    ranks: RankPool,
    model: str,
    world_size: int,
    point: dict[str, Any],
    *,
    change: str = "nothing",
    disturb: str = "",
    steps: int = STEPS,
    by: str = "tests.engine.cases:engine_trajectory",
) -> Trajectory:
    """Run one point (`by` this case), compare every rank's result with the reference, and return that."""
    spec = dict(point)
    backwards = spec.pop("backwards", spec.get("gradient_accumulation_steps", 1))
    options = reference_options(spec)
    expected = reference(model, world_size, backwards, repr(options), change, steps)
    results = ranks.run(
        world_size,
        by,
        model,
        spec,
        steps=steps,
        backwards=backwards,
        change=change,
        disturb=disturb,
    )
    for result in results:
        compare(spec, result, expected, f"{spec}")
    return expected


def compare(spec: dict[str, Any], result: Trajectory, expected: Trajectory, where: str) -> None:
    """Every parameter, moment and norm has the same bits."""
    for kind in ("parameters", "moments"):
        values = getattr(result, kind)
        for name, value in getattr(expected, kind).items():
            assert torch.equal(values[name], value), f"{kind}: {name} at {where}"
    measured = "gradient_clipping" in spec or spec.get("dtype") == "float16"
    norms = expected.norms if measured else [None] * len(expected.norms)
    assert str(result.norms) == str(norms), f"norms {result.norms} for {norms} at {where}"
    assert result.skipped == expected.skipped, f"skipped {result.skipped} at {where}"
