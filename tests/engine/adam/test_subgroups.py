"""No hidden step counter: what upstream's CPU Adam once drifted on must not move a bit here."""

import torch

from tests.engine.adam.cases import Case, results
from zbench.engine.adam import AdamTask, CpuAdam, Hyper, NativeAdam, Slot, adam_step_

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)


def state(numel: int) -> Slot:
    generator = torch.Generator().manual_seed(numel)
    return Slot(torch.randn(numel, generator=generator), torch.zeros(numel), torch.zeros(numel))


def test_same_step_subgroup_updates_do_not_drift() -> None:
    """Several subgroups of one step: the last of them is corrected for that step, not for a later one."""
    whole, parts = [state(1024) for _ in range(2)]
    for step in range(1, 11):
        grad = torch.randn(1024, generator=torch.Generator().manual_seed(step))
        NativeAdam().update([AdamTask(whole, grad, step, HYPER)])
        for begin in range(0, 1024, 256):
            cut = Slot(*(t[begin : begin + 256] for t in (parts.param, parts.exp_avg, parts.exp_avg_sq)))
            NativeAdam().update([AdamTask(cut, grad[begin : begin + 256], step, HYPER)])
    assert torch.equal(whole.param, parts.param)


def test_a_step_that_jumps_needs_no_history() -> None:
    """From step 2 to 5: the correction is that of step 5, whatever was called before."""
    jumped, fresh = [state(500) for _ in range(2)]
    grad = torch.ones(500)
    for slot in (jumped, fresh):
        slot.exp_avg.fill_(0.25)
        slot.exp_avg_sq.fill_(0.5)
    NativeAdam().update([AdamTask(state(500), grad, 2, HYPER)])
    NativeAdam().update([AdamTask(jumped, grad, 5, HYPER)])
    expected = fresh.param.double()
    exp_avg, exp_avg_sq = 0.9 * 0.25 + 0.1, 0.999 * 0.5 + 0.001
    update = 1e-3 / (1 - 0.9**5) * exp_avg / ((exp_avg_sq / (1 - 0.999**5)) ** 0.5 + 1e-8)
    assert (jumped.param - (expected * (1 - 1e-5) - update)).abs().max() < 1e-6
    NativeAdam().update([AdamTask(fresh, grad, 5, HYPER)])
    assert torch.equal(jumped.param, fresh.param)


def test_betas_changed_in_mid_run_are_those_of_a_fresh_call() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(333, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = CpuAdam([parameter], lr=0.01, weight_decay=0.1)
    param, exp_avg, exp_avg_sq = start.clone(), torch.zeros(333), torch.zeros(333)
    for step in range(1, 9):
        betas = (0.9, 0.999) if step < 4 else (0.5, 0.9)
        parameter.grad = torch.randn(333, generator=generator)
        optimizer.param_groups[0]["betas"] = betas
        optimizer.step()
        hypers = {"lr": 0.01, "betas": betas, "eps": 1e-8, "weight_decay": 0.1}
        adam_step_(param, parameter.grad, exp_avg, exp_avg_sq, step=step, **hypers)  # type: ignore[arg-type]
    assert torch.equal(param, parameter)


def test_tasks_with_different_groups_share_one_call() -> None:
    hypers = [HYPER, Hyper(0.1, 0.5, 0.9, 1e-3, 0.0, False, False), Hyper(0.01, 0.0, 0.5, 1e-8, 0.2)]
    cases = [Case(1000 + i, i, hypers[i % 3], step=1 + i, amsgrad=i % 2 == 0) for i in range(6)]
    together, alone = [case.task() for case in cases], [case.task() for case in cases]
    NativeAdam(threads=2).update(together)
    for task in alone:
        NativeAdam(threads=1).update([task])
    for left, right in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results(left), results(right), strict=True))
