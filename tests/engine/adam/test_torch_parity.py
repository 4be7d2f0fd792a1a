"""torch.optim.AdamW and Adam with fused=True, bit for bit; a CUDA device without our kernels uses them."""

import random
from dataclasses import replace

import pytest
import torch

from zbench.engine.adam import CpuAdam, NativeAdam, TorchFusedAdam
from zbench.testing.adam import FLOATS, assorted, bits, written

STEPS = 50
CAPABLE = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@pytest.mark.skipif(not CAPABLE, reason="without fused multiply-add torch's own bits are others")
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize("trial", [0, pytest.param(1, marks=pytest.mark.check)])
def test_fifty_steps_of_random_hyperparameters(
    optimizer: type[torch.optim.Optimizer], amsgrad: bool, trial: int, isa: str
) -> None:
    chance = random.Random(trial)
    generator = torch.Generator().manual_seed(trial)
    start = torch.randn(16 * chance.randrange(1, 200), generator=generator) * 0.05
    theirs, ours = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    reference = optimizer([theirs], fused=True, amsgrad=amsgrad)  # type: ignore[call-arg]
    mine = CpuAdam([ours], amsgrad=amsgrad, decoupled=optimizer is torch.optim.AdamW)
    for step in range(1, STEPS + 1):
        hyper = {
            "lr": 10 ** chance.uniform(-5, -1),
            "betas": (chance.choice([0.0, 0.3, 0.5, 0.9, 0.95]), chance.uniform(0.0, 0.9999)),
            "eps": 10 ** chance.uniform(-12, -3),
            "weight_decay": chance.choice([0.0, 0.01, 0.5]),
        }
        reference.param_groups[0].update(hyper)
        mine.param_groups[0].update(hyper)
        theirs.grad = torch.randn(start.shape, generator=generator) * 10 ** chance.uniform(-6, 1)
        ours.grad = theirs.grad.clone()
        reference.step()
        mine.step()
        where = f"{optimizer.__name__}, amsgrad={amsgrad}, step {step}, {isa}, {hyper}"
        assert torch.equal(ours, theirs), f"parameters differ from fused: {where}"
        for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])):
            assert torch.equal(mine.state[ours][name], reference.state[theirs][name]), f"{name}: {where}"


@pytest.mark.parametrize("moments", FLOATS[:2])
@pytest.mark.parametrize("grads", FLOATS)
def test_torchs_own_adam_returns_the_contracts_bits(grads: torch.dtype, moments: torch.dtype) -> None:
    sizes = (256, 4096, 512)  # only of multiples of 16 are torch's bits the contract's
    cases = [replace(case, rounding_seed=None) for case in assorted(grads, moments, sizes)]
    ours, theirs = ([case.task() for case in cases] for _ in range(2))
    NativeAdam().update(ours, grad_scale=0.37)
    TorchFusedAdam().update(theirs, grad_scale=0.37)
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for left, right in zip(written(mine), written(other), strict=True):
            same = (bits(left) == bits(right)) | (left.isnan() & right.isnan())  # a NaN keeps its payload
            assert bool(same.all()), f"task {index}: {cases[index]}"
