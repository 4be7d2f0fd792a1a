"""Memory of compiled reductions belongs to the step: asserted by bytes of torch's allocator.

`test_inductor` has what depends on inductor's code.
"""

from itertools import product
from typing import Any

import pytest

from tests.engine.covering import by_default
from zbench.testing.ranks import RankPool

CASES = "tests.engine.compiled.lifetimes"

STEPS: list[dict[str, Any]] = [
    {},
    {"offload_optimizer": "cpu"},
    {"gradient_accumulation_steps": 2},
    {"dtype": "bfloat16", "communication_dtype": "float32", "gradient_accumulation_steps": 2},
]


@pytest.mark.parametrize(
    ("turn", "world_size"),
    by_default(lambda turn, world: world == 1 + turn, product((0, 1), (1, 2))),
)
def test_during_the_update_only_the_float32_partition_is_alive(
    ranks: RankPool, turn: int, world_size: int
) -> None:
    """The specifications take turns on one rank and on two; the soak has the rest."""
    case = f"{CASES}:update_meets_only_the_partition"
    ranks.run(world_size, case, STEPS[turn::2], "two_graphs_share_a_parameter")


def test_a_gradient_that_was_sent_from_where_it_was_is_gone_too(ranks: RankPool) -> None:
    spec = {"compile": "aot_eager", "reduce_bucket_size": 10**6}
    ranks.run(2, f"{CASES}:update_meets_only_the_partition", [spec], "wide")


def test_the_peak_is_no_higher_than_that_of_eager_zero_1(ranks: RankPool) -> None:
    eager, compiled = (
        ranks.run(2, f"{CASES}:whole_peak", how, "deep", 20_000) for how in ("off", "aot_eager")
    )
    assert all(c <= e for c, e in zip(compiled, eager, strict=True))


def test_an_exception_in_backward_frees_everything(ranks: RankPool) -> None:
    ranks.run(2, f"{CASES}:faults_free_everything")


def test_a_skipped_step_frees_everything(ranks: RankPool) -> None:
    ranks.run(2, f"{CASES}:skipped_steps_free_everything")


def test_engines_that_come_and_go_leave_nothing(ranks: RankPool) -> None:
    ranks.run(1, f"{CASES}:engines_come_and_go")


def test_targets_are_bound_when_the_first_gradient_is_ready(ranks: RankPool) -> None:
    for of_rank in ranks.run(2, f"{CASES}:targets_come_with_gradients"):
        for (begun, first, ended), partition in of_rank:
            assert begun == first == 0, "no target while the backward runs up to its first gradient"
            assert ended == partition > 0
