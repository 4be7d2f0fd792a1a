"""No step keeps, allocates or copies more than it must, to the byte; nothing leaks into the next one."""

from typing import Any

import pytest
import torch

from tests.engine.holding import LAYERS, WIDTH
from tests.engine.lattice import EVERY_ROW, SIZES, row_id
from zbench.testing.ranks import RankPool

WHOLE = 4 * LAYERS * WIDTH * WIDTH
"""Bytes of the model, and of its gradients."""
PART = WHOLE // 2
TERMS = 13
"""Words that ranks add up at a step: a refusal, four for the hyperparameters, four for each of two hashes."""
FLAGS = 1
"""Words that hold which of the layers received a gradient."""
SLACK = 4096
"""Bytes of bookkeeping that are in no category."""
SINGLE: list[dict[str, Any]] = [
    {},
    {"accumulation_mode": "unmanaged"},
    {"accumulation_mode": "multi_backward"},
]
SEVERAL: list[dict[str, Any]] = [{"gradient_accumulation_steps": 3}, *SINGLE[1:]]

each_row = pytest.mark.parametrize("k", range(len(EVERY_ROW)), ids=lambda k: row_id(EVERY_ROW[k]))


def measure(ranks: RankPool, k: int, mode: dict[str, Any], backwards: int) -> tuple[dict[str, Any], ...]:
    """Run a row; nothing may grow, and the categories account for all; return row, ranks' results."""
    row = EVERY_ROW[k]
    spec = row | mode | {"param_persistence_threshold": 0, "prefetch_bucket_size": 1}
    results = ranks.run(2, "tests.engine.holding:steps", spec, backwards)
    for result in results:
        assert len(set(result["kept"][1:])) == 1, f"{spec} leaks: {result['kept']}"
        assert abs(result["kept"][-1] + WHOLE - sum(result["held"].values())) < SLACK
    return row, *results


def gradients(held: dict[str, int]) -> int:
    """Return the bytes of gradients that outlive a step, wherever they are."""
    return held.get("gradients", 0) + held.get("host_gradients", 0)


def sums(row: dict[str, Any]) -> int:
    """Return the bytes of where sums land that may outlive a step: at stage 3 only the host's."""
    if row["zero_stage"] == 3 and row.get("offload_optimizer", "none") == "none":
        return 0
    return PART if row["zero_stage"] else WHOLE


@each_row
def test_a_single_backward_is_copied_once_and_needs_no_accumulator(ranks: RankPool, k: int) -> None:
    row, *results = measure(ranks, k, SINGLE[k % 3], 1)
    for result in results:
        assert gradients(result["held"]) == sums(row), "where the sums land, no more"
        assert set(result["copies"]) == {"copy_"}
        gathered = (
            (LAYERS - 1) * PART // LAYERS if row["zero_stage"] == 3 else 0
        )  # for backward, all layers but the first
        copied = 0 if row["zero_stage"] == 3 else WHOLE  # there each gradient fills a bucket, and is sent
        assert result["copies"]["copy_"] == copied + gathered + 8 * (FLAGS + TERMS)


@each_row
def test_several_backwards_are_added_up_where_they_are_reduced(ranks: RankPool, k: int) -> None:
    row, *results = measure(ranks, k, SEVERAL[k % 3], 3)
    for result in results:
        accumulator = WHOLE if row["zero_stage"] == 1 else 0  # stage 0 adds where the sums are kept
        assert gradients(result["held"]) == sums(row) + accumulator
        added = WHOLE if row["zero_stage"] < 2 else PART
        assert result["copies"]["add_"] == 2 * added


@each_row
def test_what_fails_or_is_given_up_is_freed(ranks: RankPool, k: int) -> None:
    spec = EVERY_ROW[k] | SIZES | {"gradient_accumulation_steps": 2}
    for held in ranks.run(2, "tests.engine.holding:disturbed", spec):
        assert max(held[3:]) <= held[2], "the same every time, so nothing may be left"


def test_stage_3_has_room_for_a_layers_sums_from_its_own_gradient_on(ranks: RankPool) -> None:
    layer = PART // LAYERS
    for seen in ranks.run(2, "tests.engine.holding:room_for_sums"):
        assert seen == [0, *(layer * k for k in range(LAYERS + 1)), 0]


def test_a_model_made_in_parts_is_never_whole_on_a_rank(ranks: RankPool) -> None:
    layer = WHOLE // LAYERS
    for world_size in (2, 4):
        case = "tests.engine.holding:build_in_parts"
        for whole, parts in zip(*(ranks.run(world_size, case, w) for w in (True, False)), strict=True):
            assert whole[0]["created"] >= WHOLE
            assert parts[0]["created"] <= WHOLE // world_size + 3 * layer, (
                "its part, and the layer being made"
            )
            state = 4 * WHOLE // world_size  # parameters, gradients and moments
            assert parts[0]["built"] <= state + 4 * layer
            assert all(torch.equal(v, parts[1][name]) for name, v in whole[1].items())
