"""Digests: equal for equal bits, different for any others, whatever the layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zbench.verify.digest import digest


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=300), st.data())
def test_one_changed_element_always_changes_the_digest(bits: list[int], data: st.DataObject) -> None:
    tensor = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    place = data.draw(st.integers(0, len(bits) - 1))
    flipped = tensor.clone()
    flipped.view(torch.int32)[place] ^= 1 << data.draw(st.integers(0, 30))
    assert digest(flipped) != digest(tensor)
    assert digest(tensor.clone()) == digest(tensor)


@pytest.mark.parametrize("size", [1, 2, 3, 65_535, 65_536, 65_537, 2_097_152, 2_097_155])
def test_block_boundaries_hide_nothing(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    for place in {0, size // 2, size - 1}:
        changed = values.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(9.0))
        assert digest(changed) != digest(values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(200_000), torch.arange(200_000).roll(1)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.ones(8), torch.ones(8, dtype=torch.bfloat16)),
    ],
    ids=["order", "sign_of_zero", "dtype"],
)
def test_order_signs_and_the_dtypes_bits_count(one: torch.Tensor, other: torch.Tensor) -> None:
    assert digest(one) != digest(other)


def test_threads_strides_and_shape_do_not_matter() -> None:
    values = torch.randn(300, 500, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    digests = set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            digests |= {digest(values), digest(values.reshape(-1)), digest(values.t().contiguous().t())}
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(7, dtype=torch.uint8), -3626877798812471552),
        (torch.tensor([1.0, -0.0]), 5739072699745959936),
        (torch.arange((1 << 20) + (1 << 15) + 5), -6293506634313558112),
    ],
    ids=["part_of_a_word", "one_word", "several_spans"],
)
def test_the_digest_is_the_same_in_every_version(tensor: torch.Tensor, expected: int) -> None:
    assert digest(tensor) == expected
