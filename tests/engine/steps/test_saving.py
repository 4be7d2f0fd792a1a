"""Random number generators in checkpoints, and weights alone."""

from pathlib import Path
from typing import Any

from tests.engine.ranks import RankPool
from tests.engine.steps.test_transactions import each_row

CASES = "tests.engine.steps.saving:"


@each_row
def test_a_resumed_run_draws_the_numbers_of_a_continuous_one(
    ranks: RankPool, tmp_path: Path, row: dict[str, Any]
) -> None:
    assert all(ranks.run(2, CASES + "resumed", str(tmp_path / "runs" / "today"), row))


@each_row
def test_weights_alone_load_into_a_plain_model(ranks: RankPool, tmp_path: Path, row: dict[str, Any]) -> None:
    for same, message in ranks.run(2, CASES + "weights", str(tmp_path / "weights.safetensors"), row):
        assert same
        assert message.startswith("UsageError")
