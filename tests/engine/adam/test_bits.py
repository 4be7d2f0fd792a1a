"""Same bits on every instruction set, thread count, partition and order; `test_torch_parity` has torch's."""

import itertools
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench import _native
from zbench.engine.adam import Hyper, NativeAdam
from zbench.testing.adam import FLOATS, Case, bits, part, results

BETAS = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.999]), st.floats(0.0, 0.9999))
HYPERS = st.builds(
    Hyper,
    lr=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
    beta1=BETAS,
    beta2=BETAS,
    eps=st.sampled_from([0.0, 1e-8, 1e-3]),
    weight_decay=st.sampled_from([0.0, 0.01, 0.3]),
    bias_correction=st.booleans(),
    decoupled=st.booleans(),
)
SIZES = st.one_of(st.integers(0, 70), st.integers(0, 3000), st.sampled_from([65536, 100_003]))
CASES = st.builds(
    Case,
    numel=SIZES,
    seed=st.integers(0, 2**32),
    hyper=HYPERS,
    step=st.one_of(st.integers(1, 20), st.integers(1, 10**6)),
    grad_dtype=st.sampled_from(FLOATS),
    moment_dtype=st.sampled_from(FLOATS[:2]),
    out_dtype=st.sampled_from([None, *FLOATS]),
    amsgrad=st.booleans(),
    buffered=st.booleans(),
    rounding_seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    rounding_offset=st.sampled_from([0, 7, 2**32 - 300]),
    shift=st.integers(0, 3),
)
SCALES = st.sampled_from([1.0, 0.37, 1.0 / 65536.0, 0.0])


def run(case: Case, scale: float, isa: str, threads: int = 1) -> list[torch.Tensor]:
    task = case.task()
    _native.force_isa(isa)
    NativeAdam(threads=threads).update([task], grad_scale=scale)
    _native.force_isa("")
    return results(task)


@settings(max_examples=50, deadline=None)
@given(CASES, SCALES)
def test_every_isa_returns_the_same_bits(case: Case, scale: float) -> None:
    expected = run(case, scale, "scalar")
    for isa in _native.available_isas():
        for ours, theirs in zip(run(case, scale, isa), expected, strict=True):
            assert torch.equal(ours, theirs), isa


@settings(max_examples=25, deadline=None)
@given(CASES, st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_partition_order_and_thread_count_is_one_call(
    case: Case, threads: int, chance: random.Random
) -> None:
    expected = run(case, 0.37, "scalar")
    task = case.task()
    cuts = sorted({0, case.numel, *(chance.randrange(case.numel + 1) for _ in range(4))})
    parts = [part(task, begin, end) for begin, end in itertools.pairwise(cuts)]
    chance.shuffle(parts)
    together = chance.randrange(len(parts) + 1)
    adam = NativeAdam(threads=threads)
    adam.update(parts[:together], grad_scale=0.37)
    for piece in parts[together:]:
        adam.update([piece], grad_scale=0.37)
    for ours, theirs in zip(results(task), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_stochastic_rounding_is_unbiased_and_follows_the_step() -> None:
    # Between 1 and the next bfloat16 (1 + 1/128), a quarter of the way: up in a quarter of the elements.
    numel = 1 << 18
    value = 1 + 0.25 / 128
    hyper = Hyper(0.0, 0.0, 0.0, 1e-8, 0.0)
    means = []
    moments = []
    for step in (1, 2):
        case = Case(numel, 0, hyper, step, moment_dtype=torch.bfloat16, rounding_seed=0)
        task = case.task()
        task.slot.exp_avg.zero_()
        task.grad.fill_(value)
        NativeAdam().update([task])
        moments.append(bits(task.slot.exp_avg).clone())
        means.append((task.slot.exp_avg.double().mean().item() - 1) * 128)
    assert all(abs(mean - 0.25) < 0.005 for mean in means)
    assert not torch.equal(*moments)
