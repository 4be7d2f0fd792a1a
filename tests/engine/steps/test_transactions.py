"""A step is taken whole on every rank, or refused before anything has changed."""

from typing import Any

import pytest

from tests.engine.lattice import row_id
from zbench.testing.ranks import RankPool

CASES = "tests.engine.steps.transacting:"
ROWS: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 1, "offload_optimizer": "cpu"},
    {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"},
    {"zero_stage": 3},
]
each_row = pytest.mark.parametrize("row", ROWS, ids=row_id)


@each_row
@pytest.mark.parametrize("on", [-1, 1], ids=["everywhere", "on-one-rank"])
def test_an_invalid_group_is_refused_on_every_rank_before_any_update(
    ranks: RankPool, row: dict[str, Any], on: int
) -> None:
    for message, unchanged, repaired in ranks.run(2, CASES + "invalid_group", row, on):
        assert message.startswith("UsageError")
        assert "rank 1: param_groups[1]" in message
        assert "lr" in message
        assert unchanged
        assert repaired, "with a valid lr the same step can be taken"


@each_row
def test_ranks_with_other_hyperparameters_stop_and_name_them(ranks: RankPool, row: dict[str, Any]) -> None:
    for message, unchanged in ranks.run(2, CASES + "other_lr", row):
        assert message.startswith("RanksDisagreeError")
        assert "rank 0: ((0.1," in message
        assert "rank 1: ((0.2," in message
        assert unchanged


@each_row
@pytest.mark.parametrize("through", ["engine", "optimizer"])
def test_zero_grad_discards_the_step_that_has_begun(
    ranks: RankPool, row: dict[str, Any], through: str
) -> None:
    assert all(ranks.run(2, CASES + "discarded", row | {"accumulation_mode": "unmanaged"}, through))


@each_row
def test_the_norm_is_there_without_clipping_if_a_step_asks(ranks: RankPool, row: dict[str, Any]) -> None:
    for asked, unasked, torchs in ranks.run(2, CASES + "norms", row):
        assert asked == pytest.approx(torchs, rel=1e-5)
        assert unasked is None


@each_row
def test_a_gradient_from_outside_is_refused_and_not_added(ranks: RankPool, row: dict[str, Any]) -> None:
    for first, second, undisturbed in ranks.run(2, CASES + "left_over", row):
        for message in (first, second):
            assert message.startswith("UsageError")
            assert "zero_grad()" in message
        assert undisturbed


@each_row
def test_an_old_engine_cannot_touch_its_successor(ranks: RankPool, row: dict[str, Any]) -> None:
    for messages, trains in ranks.run(2, CASES + "closing", row):
        assert all(text.startswith("UsageError") for text in messages), messages
        assert "close()" in messages[0]
        assert trains


@each_row
def test_a_dropped_engine_leaves_its_memory_and_its_model(ranks: RankPool, row: dict[str, Any]) -> None:
    assert ranks.run(2, CASES + "dropped", row) == [(True, True)] * 2


@each_row
@pytest.mark.parametrize("where", ["backward", "step"])
def test_an_interrupt_leaves_the_state_before_or_after(
    ranks: RankPool, row: dict[str, Any], where: str
) -> None:
    assert ranks.run(2, CASES + "interrupted", row, where) == [("KeyboardInterrupt", True)] * 2


@each_row
def test_a_step_that_was_broken_off_leaves_no_usable_engine(ranks: RankPool, row: dict[str, Any]) -> None:
    for first, *later in ranks.run(2, CASES + "broken_off", row):
        assert first == "MemoryError: in the middle"
        assert all(text.startswith("UsageError") and "checkpoint" in text for text in later), later


@each_row
def test_users_hooks_see_and_change_the_gradients_that_torchs_would(
    ranks: RankPool, row: dict[str, Any]
) -> None:
    assert ranks.run(2, CASES + "hooked", row, 1) == [("nothing", True)] * 2
    several = row | {"gradient_accumulation_steps": 2}
    for message, _ in ranks.run(2, CASES + "hooked", several, 2):
        assert message.startswith("UsageError")
        assert "'2.weight' in a step of several backwards" in message


@each_row
def test_sparse_gradients_are_refused_by_name(ranks: RankPool, row: dict[str, Any]) -> None:
    for message in ranks.run(2, CASES + "sparse", row):
        assert message.startswith("UsageError")
        assert "'0.weight'" in message
        assert "sparse=False" in message
