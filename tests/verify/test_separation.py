"""The thresholds 4 and 100 hold at depth and in bfloat16: honest rounding below, faults above.

Other engines and real processes are tried in tests/worker; here runs differ in what the reference itself is
given.
"""

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.verify.honest import final_state
from tests.verify.runs import GPT, MLP, reference, reversed_samples, task
from zbench.record.record import Correctness
from zbench.verify.limits import WORST_UP_TO
from zbench.verify.plain_training import PlainTask
from zbench.verify.replay import Adam, replay
from zbench.verify.slope import gradient_sums, judge_gradient
from zbench.verify.verdict import judge

DEEP = {**GPT, "options": {"layers": 8, "width": 32, "heads": 4}}
CASES = [
    ("float32", MLP),
    pytest.param("float32", DEEP, marks=pytest.mark.check),
    pytest.param("bfloat16", GPT, marks=pytest.mark.check),
]


def judged(of: PlainTask, other: PlainTask) -> Correctness:
    """Return the verdict on a run of `other`, by the reference of `of`."""
    run, against = reference(other, truth=False), reference(of)
    return judge(run.plain, final_state(run.parameters, run.moments, against), against).correctness


@pytest.mark.parametrize(("dtype", "workload"), CASES)
def test_samples_in_another_order_are_equivalent(dtype: str, workload: dict[str, object]) -> None:
    of = task(workload, dtype=dtype)
    result = judged(of, reversed_samples(of))
    assert result.verdict == "equivalent"
    assert result.error_ratio is not None
    assert 0 < result.error_ratio <= 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_a_hundredth_too_large_is_told_from_another_order(dtype: str) -> None:
    of = task(GPT, dtype=dtype, steps=1)
    plain, other = reference(of), reference(reversed_samples(of), truth=False)

    def faults(gradients: dict[str, Tensor], clipping_error: float = 0.0) -> list[str]:
        each = gradient_sums(gradients, plain.gradients, plain.true_gradients).slopes(list(plain.gradients))
        return [finding.text for finding in judge_gradient(each, None, dtype, {}, clipping_error)[0]]

    right = dict(other.gradients)
    assert faults(right) == []
    (fault,) = faults(right | {"head.weight": right["head.weight"] * 1.012})
    assert re.fullmatch(r"gradients 1\.\d % too large \(head\.weight\)", fault)
    larger = {name: value * 1.04 for name, value in right.items()}  # as an inexact norm clips them
    assert faults(larger) != []
    assert faults(larger, clipping_error=0.02) == []


DROPPED = "a dropped micro-batch"


@pytest.mark.parametrize(("dtype", "workload"), CASES)
@pytest.mark.parametrize("fault", [DROPPED, {"lr": 2e-3}, {"weight_decay": 1.0}], ids=str)
def test_faults_are_not(dtype: str, workload: dict[str, object], fault: Any) -> None:
    of = task(workload, dtype=dtype, gradient_accumulation_steps=2)
    if fault == DROPPED:
        other = dataclasses.replace(of, accumulation=dataclasses.replace(of.accumulation, backwards=1))
    else:
        other = task(workload, dtype=dtype, gradient_accumulation_steps=2, optimizer=fault)
    result = judged(of, other)
    assert result.first_differing_step == 1
    if dtype == "float32" and fault != {"lr": 2e-3}:
        assert result.verdict == "wrong"
    elif dtype == "float32" or fault != {"weight_decay": 1.0}:  # which bfloat16 hides
        assert result.verdict in ("drifted", "wrong")


def test_moments_that_are_subnormal_in_float32_are_no_fault() -> None:
    weight = nn.Parameter(torch.zeros(64))
    adamw = torch.optim.AdamW([weight], lr=1e-3, fused=True)
    weight.grad = torch.logspace(-44, -38, 64)
    zeros = {kind: torch.zeros(64) for kind in ("param", "exp_avg", "exp_avg_sq")}
    adamw.step()
    state = adamw.state[weight]
    after = {"param": weight.detach(), "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
    adam = Adam(1e-3, 0.9, 0.999, 1e-8, 0.01, bias_correction=True, amsgrad=False, decoupled=True)
    (residual,) = replay({"w@": zeros}, {"w@": after}, {"w": adam}, {"w": 1}, rank=0, step=0)
    assert residual.worst < WORST_UP_TO / 2
