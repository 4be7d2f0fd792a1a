"""The model of torch's caching allocator follows each rule of c10/cuda/CUDACachingAllocator.cpp."""

import itertools
import random
from pathlib import Path

import pytest

from zbench.app.estimate_columns import estimate_table
from zbench.estimate.caching import (
    MIB,
    RELEASE,
    CachingAllocator,
    MemoryBlock,
    OutOfDeviceMemoryError,
    is_expandable,
    reserved,
)
from zbench.estimate.reading import estimate
from zbench.estimate.result import Capacity, Reserved
from zbench.estimate.row import EstimateRow
from zbench.spec.run import RunSpec
from zbench.spec.trial import TrialSpec


def in_mib(allocator: CachingAllocator, *sizes: float) -> list[MemoryBlock]:
    return [allocator.allocate(int(size * MIB)) for size in sizes]


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_a_segment_is_as_large_as_its_first_request(nbytes: int, expected: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(nbytes)
    assert allocator.reserved == expected


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    allocator = CachingAllocator()
    for _ in range(2 * MIB // 512):
        allocator.allocate(1)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved == 4 * MIB


@pytest.mark.parametrize(("remaining_bytes", "is_split"), [(MIB, False), (MIB + 512, True)])
def test_a_large_block_with_1_mib_left_is_split(remaining_bytes: int, is_split: bool) -> None:
    allocator = CachingAllocator()
    allocator.allocate(8 * MIB)
    allocator.allocate(12 * MIB - remaining_bytes)
    assert allocator.reserved == 20 * MIB
    allocator.allocate(MIB + 512)
    assert allocator.reserved == (20 if is_split else 40) * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    for block in in_mib(allocator, 30, 12):
        allocator.free(block)
    in_mib(allocator, 11.5, 30)
    assert allocator.reserved == 42 * MIB


def test_free_neighbours_of_a_segment_merge() -> None:
    allocator = CachingAllocator()
    blocks = in_mib(allocator, 6, 6, 8)
    for block in blocks[::2]:
        allocator.free(block)
    in_mib(allocator, 9)
    assert allocator.reserved == 40 * MIB, "8 MiB and 6 MiB are apart"
    allocator.free(blocks[1])
    in_mib(allocator, 20)
    assert allocator.reserved == 40 * MIB


def test_a_stream_and_small_requests_have_blocks_of_their_own() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB, stream=1))
    allocator.allocate(30 * MIB, stream=2)
    assert allocator.reserved == 60 * MIB
    allocator.allocate(512, stream=1)
    assert allocator.reserved == 62 * MIB


def test_at_the_limit_segments_that_are_wholly_free_are_released() -> None:
    allocator = CachingAllocator(60 * MIB)
    in_mib(allocator, 2)
    allocator.free(*in_mib(allocator, 30))
    in_mib(allocator, 40)
    assert (allocator.reserved, allocator.peak) == (60 * MIB, 60 * MIB)
    with pytest.raises(OutOfDeviceMemoryError):
        in_mib(allocator, 19)
    in_mib(allocator, 18)


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = CachingAllocator(expandable=True)
    allocator.free(*in_mib(allocator, 30))
    first, _ = in_mib(allocator, 32, 8)
    assert allocator.reserved == 40 * MIB, "by default 30 and 32 MiB"
    in_mib(allocator, 1)
    assert allocator.reserved == 42 * MIB, "small requests have a segment of pages of 2 MiB"
    allocator.free(first)
    in_mib(allocator, 33)
    assert allocator.reserved == (42 + 40) * MIB
    in_mib(allocator, 32, 7)
    assert allocator.reserved == 82 * MIB


def test_a_block_that_can_grow_is_left_free() -> None:
    allocator = CachingAllocator(expandable=True)
    inner, _ = in_mib(allocator, 6, 10)
    allocator.free(inner)
    (block,) = in_mib(allocator, 3)
    assert block.address == 0, "not the 4 MiB at the end"


def test_released_pages_are_mapped_again_for_what_just_fits() -> None:
    allocator = CachingAllocator(expandable=True)
    first, _ = in_mib(allocator, 20, 20)
    allocator.free(first)
    allocator.release()
    (block,) = in_mib(allocator, 20)
    assert (block.address, allocator.reserved) == (0, 40 * MIB)


def test_at_the_limit_free_pages_are_released_and_mapped_again() -> None:
    def filled(limit: int) -> CachingAllocator:
        allocator = CachingAllocator(limit * MIB, expandable=True)
        allocator.free(in_mib(allocator, 20, 25, 15)[1])
        return allocator

    with pytest.raises(OutOfDeviceMemoryError):
        in_mib(filled(79), 26)
    allocator = filled(80)
    (block,) = in_mib(allocator, 26)
    assert (allocator.reserved, block.address) == (80 * MIB, 60 * MIB), "one page of the 25 MiB is whole"
    allocator.limit = 100 * MIB
    assert in_mib(allocator, 22)[0].address == 20 * MIB
    assert allocator.reserved == 100 * MIB


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("limit", [None, 300 * MIB])
def test_blocks_never_overlap_and_all_memory_comes_back(limit: int | None, expandable: bool) -> None:
    draw = random.Random(0)
    used = list[MemoryBlock]()
    allocator = CachingAllocator(limit, expandable=expandable)
    refused = 0
    for _ in range(3000):
        if used and draw.random() < 0.45:
            allocator.free(used.pop(draw.randrange(len(used))))
            continue
        try:
            used.append(allocator.allocate(int(2 ** draw.uniform(6, 25)), stream=draw.randrange(2)))
        except OutOfDeviceMemoryError:
            refused += 1
            used, freed = used[::2], used[1::2]
            for block in freed:
                allocator.free(block)
        assert sum(block.size for block in used) <= allocator.reserved <= (limit or 1 << 60)
        spans = sorted((id(block.pool), block.address, block.size) for block in used)
        assert all(a[0] != b[0] or a[1] + a[2] <= b[1] for a, b in itertools.pairwise(spans))
    assert (refused > 0) == (limit is not None)
    for block in used:
        allocator.free(block)
    allocator.release()
    assert allocator.reserved == 0


def test_a_step_reserves_without_what_building_released() -> None:
    sizes = (100, 30, 32, 34)
    changes = list[tuple[int, int, int, int]]()
    for key, size in enumerate(sizes):
        changes += [(3 * key + 1, key, size * MIB, 0), (3 * key + 2, key, 0, 0)]
    reservation = reserved(changes, 3, 3, 34 * MIB, expandable=False)
    assert reservation.peak_bytes == 100 * MIB, "all later requests are parts of it"
    released = reserved(sorted([*changes, (3, RELEASE, 0, 0)]), 3, 3, 34 * MIB, expandable=False)
    assert released.peak_bytes == (30 + 32 + 34) * MIB
    assert 34 * MIB <= released.least_bytes < 1.01 * 34 * MIB
    grown = reserved(sorted([*changes, (3, RELEASE, 0, 0)]), 3, 3, 34 * MIB, expandable=True)
    assert grown == Reserved(40 * MIB, 40 * MIB, expandable_segments=True)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:true", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", False),
    ],
)
def test_the_environment_asks_for_expandable_segments(variable: str, value: str, expected: bool) -> None:
    assert is_expandable({variable: value}) == expected


def trial(device: str = "cuda", **engine: object) -> TrialSpec:
    workload = {"options": {"layers": 2, "width": 256, "heads": 2}, "sequence_length": 64}
    run = {"world_size": 8, "device": device}
    return TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})


def test_a_card_is_judged_by_reserved_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    forecast = estimate(trial(zero_stage=3), Path.cwd())
    assert forecast.reserved is not None
    assert forecast.peak_device_bytes <= forecast.reserved.least_bytes <= forecast.reserved.peak_bytes
    assert estimate(trial("cpu", zero_stage=3), Path.cwd()).reserved is None
    least, most = (forecast.reserved.least_bytes + size for size in forecast.reserved.beside)
    for memory, fits, may_fit in ((most, True, True), (most - 1, False, True), (least - 1, False, False)):
        row = EstimateRow(trial(), forecast, Capacity(memory))
        shown = row.to_json()
        assert (shown["fits"], shown["may_fit"], shown["spare_bytes"]) == (fits, may_fit, memory - most)
        assert str(row.verdict).startswith("fits" if fits else "may fit" if may_fit else "does not fit")
    assert "reserved" in estimate_table([row]).titles
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    grown = estimate(trial(zero_stage=3), Path.cwd()).reserved
    assert grown is not None
    assert grown.expandable_segments
    assert grown.peak_bytes % (2 * MIB) == 0


@pytest.mark.parametrize(
    ("engine", "ranks", "groups"),
    [
        ({}, 1, 0),
        ({"zero_stage": 3, "shard_group_size": 4}, 8, 6),
        ({"engine": "ddp"}, 8, 1),
    ],
)
def test_each_group_of_ranks_has_communicators_beside_the_allocator(
    engine: dict[str, object], ranks: int, groups: int
) -> None:
    small = trial(**engine)
    forecast = estimate(
        small.model_copy(update={"run": RunSpec(world_size=ranks, device="cuda")}), Path.cwd()
    )
    assert forecast.reserved is not None
    least, most = forecast.reserved.beside
    assert (least, most) == (512 * MIB, 1024 * MIB + groups * 1280 * MIB)
