"""The exact sum against rational numbers, and its bits under any partition, order, backend and world size."""

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.plain import chunk_sums, padded
from zbench import _native
from zbench.engine.adam import AdamBackend, NativeAdam, TorchFusedAdam
from zbench.engine.adam.exact_sum import EXACT_LIMBS, add_exactly, exact_zero, rounded
from zbench.testing.adam import FLOATS

LEAST = 5e-324
GREATEST = math.nextafter(math.inf, 0.0)
NUMBERS = st.one_of(
    st.floats(0.0, GREATEST),
    st.sampled_from([0.0, LEAST, 2.2250738585072014e-308, 1.0, 2.0**-53, 2.0**53, GREATEST]),
    st.builds(math.ldexp, st.floats(1.0, 2.0), st.integers(-1080, 1022)),
)
NATIVE: list[AdamBackend] = [NativeAdam(1), NativeAdam(3), TorchFusedAdam()]


def exact(sums: Tensor) -> tuple[int, int, int]:
    """Return the sum in units of the least double, and how many infinities and NaNs it has."""
    words: list[int] = sums.tolist()
    return sum(word << 32 * k for k, word in enumerate(words[:EXACT_LIMBS])), *words[EXACT_LIMBS:]


def doubles(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def nearest(total: Fraction) -> float:
    """Return the double that is nearest to a rational number."""
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return math.inf


@settings(max_examples=50, deadline=None)
@given(st.lists(NUMBERS, max_size=60), st.randoms(use_true_random=False), st.integers(1, 5))
@example([GREATEST, GREATEST], random.Random(0), 1)
@example([LEAST] * 3, random.Random(0), 2)
@example([1.0, 2.0**-53], random.Random(0), 1)  # half way: to even
@example([1.0, 2.0**-53, LEAST], random.Random(0), 1)  # more than half way
def test_any_order_and_partition_is_the_rational_sum_rounded_once(
    values: list[float], chance: random.Random, parts: int
) -> None:
    total = Fraction(sum(map(Fraction, values)))
    shuffled = chance.sample(values, len(values))
    words = exact_zero()
    for part in range(parts):
        of_rank = exact_zero()
        add_exactly(of_rank, doubles(shuffled[part::parts]))
        words += of_rank
    assert exact(words) == (total * 2**1074, 0, 0)
    assert rounded(words.tolist()) == nearest(total)


def test_additions_that_fill_every_limb_fit() -> None:
    # 2^31 - 1 times the number whose pieces are the greatest: each limb stays a positive int64.
    words = exact_zero()
    add_exactly(words, doubles([math.ldexp(2**53 - 1, 31 - 1074), math.ldexp(2**53 - 1, 11 - 1074)]))
    assert (words * (2**30 - 1) >= 0).all()
    assert int(words.max()) < 2**33
    total = exact(words)[0] * (2**30 - 1)
    assert rounded((words * (2**30 - 1)).tolist()) == nearest(Fraction(total, 2**1074))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 8, 255, 256, 257, 1024, 5000, 70_001]), max_size=4),
    st.sampled_from(FLOATS),
    st.integers(0, 2**32),
    st.sampled_from([1e-45, 1e-20, 1.0, 1e19, 3e38]),
)
def test_every_kernel_has_the_sum_of_the_chunks(
    sizes: list[int], dtype: torch.dtype, seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    grads = [(torch.randn(size, generator=generator) * scale).to(dtype) for size in sizes]
    grads = [grad.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max) for grad in grads]
    expected = math.fsum(value for grad in grads for value in chunk_sums(padded(grad)).tolist())
    for isa in _native.available_isas():
        _native.force_isa(isa)
        for backend in NATIVE:
            sums = exact_zero()
            backend.add_square_sums(grads, sums)
            assert rounded(sums.tolist()) == expected, (isa, backend)
    _native.force_isa("")


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_nonfinite_gradient_shows_in_the_sum(isa: str, bad: float) -> None:
    grad = torch.ones(1024)
    sums = exact_zero()
    grad[600] = bad
    NativeAdam().add_square_sums([grad], sums)
    assert exact(sums) == (768 << 1074, *((1, 0) if math.isinf(bad) else (0, 1)))
    assert not math.isfinite(rounded(sums.tolist()))
