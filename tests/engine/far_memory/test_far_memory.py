"""Every wait is needed and none is missing: training over far memory leaves the bits of plain PyTorch."""

import pytest

from tests.engine.far_memory.cases import Case
from tests.engine.far_memory.lattice import CHOSEN, ROWS, SPECULATIVE, check, drawn
from tests.engine.ranks import RankPool

SHORT, LONG = len(ROWS), 1000


@pytest.mark.parametrize("stage", [2, 3])
def test_a_bucket_is_reported_behind_every_earlier_sum(ranks: RankPool, stage: int) -> None:
    """Three backwards, one bucket: the second one's sum is still to be added when the third's arrives."""
    spec = {"zero_stage": stage, **SPECULATIVE, "gradient_accumulation_steps": 3}
    check(ranks, [Case(spec, seed, backwards=3) for seed in range(4)])


@pytest.mark.parametrize("ratio", [0.3, 0.5])
def test_idle_parameters_beside_masters_of_another_memory_keep_their_values(
    ranks: RankPool, ratio: float
) -> None:
    """Masters on the device, parameters on the host and in a double buffer: a commit changes halves, and only
    parameters with a gradient get new values.
    """
    spec = {"zero_stage": 3, **SPECULATIVE, "offload_param": "cpu", "offload_ratio": ratio}
    check(ranks, [Case(spec, 712, world_size=world, model="odd-together") for world in (1, 2)])


def test_a_few_schedules_of_every_row(ranks: RankPool) -> None:
    assert check(ranks, [*CHOSEN, *(drawn(seed) for seed in range(SHORT))]) > 20 * SHORT


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", range(0, LONG, 50))
def test_a_thousand_schedules(ranks: RankPool, begin: int) -> None:
    check(ranks, [drawn(seed) for seed in range(SHORT + begin, SHORT + begin + 50)])
