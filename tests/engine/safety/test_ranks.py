"""Two ranks: rank 0's values reach all, a failure on one reaches all, and no rank holds the whole state."""

from typing import Any

import pytest
import torch

from zbench.testing.ranks import RankPool

MODULE = "tests.engine.safety.ranked:"


def test_gathered_writes_rank_0s_values_on_every_rank(ranks: RankPool, row: dict[str, Any]) -> None:
    for values in ranks.run(2, MODULE + "write", row):
        assert torch.equal(values["0.weight"], torch.full((96, 96), 0.5))


def test_a_rank_that_raises_inside_gathered_keeps_all_from_writing(
    ranks: RankPool, row: dict[str, Any]
) -> None:
    first, second = ranks.run(2, MODULE + "refused_write", row, False)
    assert first[0].startswith("UsageError: nothing has changed, because another rank failed")
    assert "rank 1: KeyError: 'rank 1'" in first[0]
    assert second[0] == "KeyError: 'rank 1'"
    assert first[1]
    assert second[1]


def test_ranks_that_write_different_layers_stop_before_anything_is_written(
    ranks: RankPool, row: dict[str, Any]
) -> None:
    for text, same in ranks.run(2, MODULE + "refused_write", row, True):
        assert text.startswith("RanksDisagreeError"), text
        assert "rank 0" in text
        assert "rank 1" in text
        assert same


MODEL, TRAINED = "a model with the same parameters and buffers", "the same trained parameters"


@pytest.mark.parametrize(
    ("difference", "expected", "named"),
    [
        ("order", MODEL, ["'one."]),
        ("buffer", MODEL, ["'of_two'"]),
        ("trained", TRAINED, ["rank 0: 'two.weight' in group 0", "rank 1: 'one.weight' in group 0"]),
    ],
)
def test_ranks_with_different_models_stop_before_any_value_is_replaced(
    ranks: RankPool, row: dict[str, Any], difference: str, expected: str, named: list[str]
) -> None:
    for text, same in ranks.run(2, MODULE + "build_others", row, difference):
        assert text.startswith(f"RanksDisagreeError: expected {expected}"), text
        assert all(words in text for words in named)
        assert same


def test_saving_holds_one_parameter_at_a_time(ranks: RankPool, row: dict[str, Any], tmp_path: Any) -> None:
    for streamed, weights, whole, size, same in ranks.run(2, MODULE + "save_and_load", row, str(tmp_path)):
        assert same
        assert (
            streamed < size / 4
        )  # a parameter with its parts on the way is some 1/8 of 3 states of 8 layers
        assert weights < size / 4
        assert whole >= size > 4 * streamed, "what consolidation as a dict holds, and saving never does"


def test_memory_that_one_rank_lacks_keeps_all_ranks_from_building(ranks: RankPool) -> None:
    first, second = ranks.run(2, MODULE + "lacks_memory", {"zero_stage": 3, "offload_optimizer": "cpu"})
    assert len(first) == len(second) >= 2, "every allocation failed in its turn"
    assert all(s.startswith("UsageError: nothing has changed") and "rank 1: Memory" in s for s in first)
    assert all(s.startswith("MemoryError") for s in second)


def test_a_model_is_distributed_by_one_alone(ranks: RankPool, row: dict[str, Any]) -> None:
    for wrapped, nested, built, sharded in ranks.run(2, MODULE + "wrap", row):
        assert wrapped.startswith("UsageError: DistributedDataParallel(model): the engine itself distributes")
        assert nested.startswith("UsageError"), nested
        assert "DistributedDataParallel" in nested or "engine.gathered" in nested
        assert built.startswith("UsageError: DistributedDataParallel: the engine itself"), built
        assert sharded.startswith("UsageError: FSDPModule: the engine itself"), sharded
