"""Digests tell bits apart; the sums of runs add up to those of the whole; signed sums show a part."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.verify.layout import own_runs
from zbench.verify.sums import CELLS, Grid, Run, RunSums, digest, prepare, signed_sums

SHAPES = [(), (1,), (7,), (513,), (300, 5), (5, 300), (64, 48), (3, 3, 5, 7), (31, 37), (1100, 97)]


def runs_of(shape: tuple[int, ...], cuts: list[int]) -> list[Run]:
    size = math.prod(shape)
    edges = sorted({0, size, *(cut % (size + 1) for cut in cuts)})
    return [Run("w", shape, first, last - first) for first, last in itertools.pairwise(edges)]


@given(st.sampled_from(SHAPES), st.lists(st.integers(0, 10**6), max_size=5), st.integers(0, 9))
def test_the_sums_of_runs_add_up_to_those_of_the_whole(
    shape: tuple[int, ...], cuts: list[int], seed: int
) -> None:
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    runs = runs_of(shape, cuts)
    taker = RunSums(runs, whole.device)
    parts = [whole.reshape(-1)[run.start : run.stop] for run in runs]
    assert sum(map(int, taker.digests(parts))) % 2**64 == digest(whole) % 2**64
    np.testing.assert_allclose(
        taker.signed_sums(parts)[0].sum(axis=0), signed_sums(whole), rtol=1e-5, atol=1e-4
    )
    short = whole.bfloat16().reshape(-1)
    assert sum(digest(short[r.start : r.stop], r.start) for r in runs) % 2**64 == digest(short) % 2**64


@pytest.mark.parametrize("shape", SHAPES)
def test_an_element_counts_in_one_cell_with_one_sign(shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    for place in {0, size // 2, size - 1}:
        alone = torch.zeros(size)
        alone[place] = 3.0
        sums = signed_sums(alone.view(shape))
        assert (len(sums), np.abs(sums).sum(), np.count_nonzero(sums)) == (CELLS, 3.0, 1)


def test_the_scalar_product_of_two_tensors_is_that_of_their_signed_sums_up_to_chance() -> None:
    one, other = torch.randn(2, 640, 320, generator=torch.Generator().manual_seed(1))
    other = other + 0.5 * one
    products = float(signed_sums(one) @ signed_sums(other)), float((one * other).sum())
    assert products[0] == pytest.approx(
        products[1], abs=4 * (2 / CELLS) ** 0.5 * float(one.norm() * other.norm())
    )


def test_a_change_of_rows_or_columns_shows_in_their_cells_alone() -> None:
    values, grid = torch.ones(64, 48), Grid.of((64, 48))
    assert (grid.row_parts, grid.column_parts) == (8, 16)
    for part, rows, columns in ((values[:8], [0], range(16)), (values[:, 45:], range(8), [15])):
        before = signed_sums(values).reshape(8, 16)
        part += 1.0
        changed = np.argwhere(signed_sums(values).reshape(8, 16) != before)
        assert {tuple(cell) for cell in changed.tolist()} <= set(itertools.product(rows, columns))


def ranks(*runs: list[tuple[int, int]]) -> list[dict[str, Run]]:
    return [{f"w@{first}": Run("w", (10,), first, last - first) for first, last in one} for one in runs]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (ranks([(0, 6)], [(5, 10)]), "elements 5 to 6 of w are shown twice"),
        (ranks([(0, 4)], [(6, 10)]), "elements 4 to 6 of w are shown by no rank"),
        (ranks([(0, 4)], [(4, 9)]), "elements 9 to 10 of w are shown by no rank"),
        (ranks([], []), "elements 0 to 10 of w are shown by no rank"),
        (ranks([(0, 10)], [(0, 4), (4, 10)]), "elements 0 to 4 of w are shown twice"),
        (ranks([(0, 12)]), "elements up to 12 of w are shown, which has 10"),
    ],
)
def test_runs_that_overlap_or_leave_a_gap_are_named(shown: list[dict[str, Run]], text: str) -> None:
    assert own_runs(shown, 0, {"w": (10,)}) == text


def test_of_several_ranks_with_one_run_each_has_a_replica_and_one_adds_it() -> None:
    shown = ranks([(0, 5)], [(5, 10)], [(0, 5)], [(5, 10)])
    own = [own_runs(shown, rank, {"w": (10,)}) for rank in range(4)]
    replicas = [(one.run.start, one.replica, one.replicas) for (one,) in own if not isinstance(one, str)]
    assert replicas == [(0, 0, 2), (5, 0, 2), (0, 1, 2), (5, 1, 2)]
    adders = [one.run.start for (one,) in own if not isinstance(one, str) and one.is_mine]
    assert sorted(adders) == [0, 5]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=300), st.data())
def test_one_changed_element_always_changes_the_digest(bits: list[int], data: st.DataObject) -> None:
    tensor = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    place = data.draw(st.integers(0, len(bits) - 1))
    flipped = tensor.clone()
    flipped.view(torch.int32)[place] ^= 1 << data.draw(st.integers(0, 30))
    assert digest(flipped) != digest(tensor)
    assert digest(tensor.clone()) == digest(tensor)


@pytest.mark.parametrize("size", [1, 2, 3, 8_191, 8_192, 8_193, 65_537, 2_097_155])
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
        (torch.arange((1 << 20) + (1 << 15) + 5), -759499823316868504),
    ],
    ids=["part_of_a_word", "one_word", "several_spans"],
)
def test_the_digest_is_the_same_in_every_version(tensor: torch.Tensor, expected: int) -> None:
    assert digest(tensor) == expected


class Launches(TorchDispatchMode):
    """Counts the operations that a device would run, and the bytes of the largest result."""

    count, largest = 0, 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view and operation._schema.name != "aten::lift_fresh":
            self.count += 1
            self.largest = max(self.largest, result.nbytes if isinstance(result, torch.Tensor) else 0)
        return result


def llama_7b() -> dict[str, tuple[int, ...]]:
    """Return the shapes of 6.7 B parameters in 291 tensors."""
    block: dict[str, tuple[int, ...]] = dict.fromkeys("qkvo", (4096, 4096))
    block |= {"gate": (11008, 4096), "up": (11008, 4096), "down": (4096, 11008), "n1": (4096,), "n2": (4096,)}
    blocks = {f"{layer}.{name}": shape for layer in range(32) for name, shape in block.items()}
    return blocks | {"tokens": (32000, 4096), "norm": (4096,), "head": (32000, 4096)}


def by_rows(ranks: int, rank: int) -> list[Run]:
    """Return a rank's runs if each tensor is sharded over its first dimension, as FSDP2 does."""
    runs = []
    for name, shape in llama_7b().items():
        rows, row = -(-shape[0] // ranks), math.prod(shape[1:])
        first, last = min(shape[0], rank * rows), min(shape[0], (rank + 1) * rows)
        runs.append(Run(name, shape, first * row, (last - first) * row))
    return runs


def by_blocks(ranks: int, rank: int) -> list[Run]:
    """Return a rank's runs if the tensors of a block are one flat buffer that is cut, as the engine does."""
    runs = []
    for _, names in itertools.groupby(llama_7b(), key=lambda name: name.partition(".")[0]):
        sizes = {name: math.prod(llama_7b()[name]) for name in names}
        each = -(-sum(sizes.values()) // ranks // 64) * 64
        start = -rank * each
        for name, size in sizes.items():
            first, last = max(0, -start), min(size, each - start)
            if first < last:
                runs.append(Run(name, llama_7b()[name], first, last - first))
            start += size
    return runs


@pytest.mark.parametrize("ranks", [8, 64, 256])
@pytest.mark.parametrize("layout", [by_rows, by_blocks])
def test_a_steps_sums_of_7b_take_few_launches_and_little_memory(layout: Any, ranks: int) -> None:
    device = torch.device("meta")
    prepare(device)
    runs = layout(ranks, ranks // 2)
    weights, moments = ([torch.empty(run.length, device=device) for run in runs] for _ in range(2))
    taker = RunSums(runs, device)
    with Launches() as launches:
        taker.block_sums(weights)
        cells = [*taker.cells(weights), *taker.cells(moments)]
        torch.cat([one.sums.reshape(-1) for one in cells])
    assert launches.count <= 2000
    assert launches.largest <= 32 << 20
