"""CpuAdam as a torch optimizer: groups, resume, 16-bit parameters, gradients that come and go."""

import copy

import pytest
import torch

from zbench.engine.adam import CpuAdam


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, 3, generator=generator).to(dtype)) for size in (1, 5, 100)]


def set_grads(params: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_equals_continuous(dtype: torch.dtype) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    through = CpuAdam(ours, amsgrad=True)
    resumed = CpuAdam(theirs, amsgrad=True)
    for step in range(8):
        if step == 4:
            saved = copy.deepcopy(resumed.state_dict())
            resumed = CpuAdam(theirs, amsgrad=True)
            resumed.load_state_dict(saved)
        set_grads(ours, step)
        set_grads(theirs, step)
        through.step()
        resumed.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert resumed.state[theirs[0]]["exp_avg"].dtype is torch.float32


def test_a_parameter_without_gradient_stands_still_and_keeps_its_step() -> None:
    params = parameters()
    optimizer = CpuAdam(params)
    set_grads(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert optimizer.state[params[0]]["step"] == 1
    assert not optimizer.state.get(params[1])


def test_master_weights_keep_what_16_bits_lose() -> None:
    param = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = CpuAdam([param], lr=1e-4, eps=0.0)
    for _ in range(3):
        param.grad = torch.ones_like(param)
        optimizer.step()
    master = optimizer.state[param]["master"]
    assert torch.allclose(master, torch.full((64,), 1 - 3e-4))
    assert torch.equal(param, master.bfloat16())


def test_grad_scale_is_one_multiply() -> None:
    ours, theirs = parameters(), parameters()
    mine, plain = CpuAdam(ours), CpuAdam(theirs)
    set_grads(ours, 0)
    set_grads(theirs, 0)
    for param in theirs:
        assert param.grad is not None
        param.grad.mul_(0.3)
    mine.step(grad_scale=0.3)
    plain.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
