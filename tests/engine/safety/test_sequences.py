"""Whatever users do in whatever order: the bits of plain PyTorch after every rule, or a refusal."""

import os
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.engine.lattice import row_id
from tests.engine.safety.sequences import RULES
from zbench.testing.ranks import RankPool

SPECULATIVE = {"offload_optimizer": "cpu", "offload_schedule": "speculative", "sub_group_size": 600}
ROWS: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 1, "offload_optimizer": "cpu"},
    {"zero_stage": 2, **SPECULATIVE},
    {"zero_stage": 3, "param_persistence_threshold": 0},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu", "param_persistence_threshold": 30},
    {"zero_stage": 3, **SPECULATIVE, "param_persistence_threshold": 0, "overlap_comm": False},
]
ROWS += [{"zero_stage": 2, **SPECULATIVE, "dtype": "bfloat16"}, {"zero_stage": 3, "dtype": "bfloat16"}]
MORE = [
    {"zero_stage": 1, **SPECULATIVE, "rollback": "journal", "gradient_clipping": 0.1},
    {"zero_stage": 1, "offload_optimizer": "cpu", "offload_ratio": 0.5},
    {"zero_stage": 2, "offload_optimizer": "cpu", "gradient_clipping": 0.1},
    {"zero_stage": 3, "offload_param": "cpu", "prefetch_bucket_size": 1},
    {"zero_stage": 1, "offload_optimizer": "cpu", "dtype": "bfloat16"},
    {"zero_stage": 3, **SPECULATIVE, "offload_param": "cpu", "dtype": "bfloat16"},
]
pytestmark = pytest.mark.timeout(900)  # to shrink a sequence that fails takes up to five minutes
ROUNDS = int(os.environ.get("ZBENCH_SEQUENCES", "20"))
SEEDS = st.integers(0, 9999)
RULE = st.tuples(st.sampled_from([rule for rule, weight in RULES.items() for _ in range(weight)]), SEEDS)


def follow(ranks: RankPool, world_size: int, row: dict[str, Any], sequences: int, longest: int) -> None:
    """Follow drawn sequences of rules, and shrink one that fails."""

    @hypothesis.seed(10 * [*ROWS, *MORE].index(row) + world_size)
    @hypothesis.settings(max_examples=sequences, database=None)
    @hypothesis.given(
        SEEDS, st.integers(1, longest).flatmap(lambda n: st.lists(RULE, min_size=n, max_size=n))
    )
    def check(seed: int, rules: list[tuple[str, int]]) -> None:
        ranks.run(world_size, "tests.engine.safety.sequences:run", row, seed, rules)

    check()


@pytest.mark.parametrize("row", ROWS, ids=row_id)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_few_sequences(ranks: RankPool, row: dict[str, Any], world_size: int) -> None:
    follow(ranks, world_size, row, 3, 18)


@pytest.mark.soak
@pytest.mark.parametrize("row", [*ROWS, *MORE], ids=row_id)
@pytest.mark.parametrize("world_size", [1, 2])
def test_many_sequences(ranks: RankPool, row: dict[str, Any], world_size: int) -> None:
    follow(ranks, world_size, row, ROUNDS, 60)
