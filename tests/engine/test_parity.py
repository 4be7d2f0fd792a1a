"""Every stage, home, mode and size leaves the bits of plain PyTorch: parameters, moments and norms."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from tests.engine import models
from tests.engine.plain import PlainTrainer, Trajectory
from tests.engine.ranks import RankPool

STEPS = 3
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


def points(row: dict[str, Any], seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield points of the lattice in which every value of every choice comes up; the same ones every time."""
    draw = random.Random(seed)
    columns = [draw.sample(values * count, count) for values in CHOICES.values()]
    for values in zip(*columns, strict=True):
        point: dict[str, Any] = dict(row)
        for value in values:
            point |= value
        yield point


@cache
def reference(model: str, world_size: int, backwards: int, options: str) -> Trajectory:
    """Return the plain trajectory; `options` is the repr of a dict."""
    known: dict[str, Any] = eval(options)
    trainer = PlainTrainer(models.make(model), world_size=world_size, **known)
    for step in range(STEPS):
        micros = [[models.batch(model, step, m, r) for r in range(world_size)] for m in range(backwards)]
        trainer.step(models.loss, micros)
    return trainer.trajectory()


def check(ranks: RankPool, model: str, world_size: int, point: dict[str, Any]) -> None:
    """Run one point and compare every rank's result with the reference."""
    spec = dict(point)
    backwards = spec.pop("backwards", spec.get("gradient_accumulation_steps", 1))
    each = {"boundary": False, "each_backward": True}.get(spec.get("reduce_at", ""), spec["zero_stage"] >= 2)
    options = {
        "optimizer": {"lr": 1e-3, **spec.get("optimizer", {})},
        "groups": spec.get("param_groups"),
        "max_norm": spec.get("gradient_clipping", 0.0),
        "divisor": spec.get("gradient_accumulation_steps", 1),
        "each_backward": each,
        **{key: spec[key] for key in ("dtype", "grad_accum_dtype", "communication_dtype") if key in spec},
    }
    expected = reference(model, world_size, backwards, repr(options))
    results = ranks.run(world_size, "tests.engine.cases:train", model, spec, steps=STEPS, backwards=backwards)
    for result in results:
        for name, value in expected.parameters.items():
            assert torch.equal(result.parameters[name], value), f"{name} at {spec}"
        for name, value in expected.moments.items():
            assert torch.equal(result.moments[name], value), f"exp_avg of {name} at {spec}"
        norms = expected.norms if "gradient_clipping" in spec else [None] * STEPS
        assert result.norms == norms, spec


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("row", range(len(ROWS)), ids=lambda k: "-".join(str(v) for v in ROWS[k].values()))
def test_the_lattice_is_bit_identical_to_plain_pytorch(ranks: RankPool, row: int, world_size: int) -> None:
    for model in ("mlp", "gpt", "odd-together"):
        for point in points(ROWS[row], seed=10 * row + world_size, count=2 if model == "gpt" else 3):
            check(ranks, model, world_size, point)


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_that_are_sent_without_a_copy_have_the_same_bits(ranks: RankPool, world_size: int) -> None:
    for row in ROWS:
        check(ranks, "wide", world_size, row | {"gradient_clipping": 0.1, "reduce_bucket_size": 140_000})
        check(ranks, "wide", world_size, row | {"accumulation_mode": "unmanaged", "dtype": "bfloat16"})


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_parameters_used_on_some_ranks_only_count_as_zero_on_the_others(ranks: RankPool, stage: int) -> None:
    for accumulation in CHOICES["accumulation"]:
        check(ranks, "odd", 3, {"zero_stage": stage, "gradient_clipping": 0.1} | accumulation)


@pytest.mark.parametrize("stage", [1, 2])
def test_upstreams_scenario_four_backwards_with_and_without_offload(ranks: RankPool, stage: int) -> None:
    """3-layer MLP, Adam, lr 1e-3, 4 backwards a step: the difference that offload makes is exactly zero."""
    spec = {
        "zero_stage": stage,
        "optimizer": {"name": "adam", "lr": 1e-3, "weight_decay": 0.0},
        "accumulation_mode": "unmanaged",
    }
    runs = [
        ranks.run(
            2, "tests.engine.cases:train", "mlp", spec | {"offload_optimizer": o}, steps=5, backwards=4
        )[0]
        for o in ("none", "cpu")
    ]
    for name, value in runs[0].parameters.items():
        assert torch.equal(value, runs[1].parameters[name]), name
    check(ranks, "mlp", 2, spec | {"backwards": 4})
