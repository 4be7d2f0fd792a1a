"""Every wait is needed and none is missing: training over far memory leaves the bits of plain PyTorch."""

from dataclasses import replace

import pytest

from tests.engine.far_memory.cases import CHOSEN, OFFLOADED, ROWS, SPECULATIVE, Case, check, drawn
from tests.engine.lattice import PLACES
from zbench.testing.ranks import RankPool

SMALL_BUCKETS = {"reduce_bucket_size": 1500, "allgather_bucket_size": 700, "sub_group_size": 900}
SHORT = len(ROWS)
LONG = 1000


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stage", [2, 3])
def test_a_bucket_is_reported_behind_every_earlier_sum(ranks: RankPool, stage: int, place: str) -> None:
    """Three backwards, one bucket: the second one's sum is still to be added when the third's arrives."""
    spec = {"zero_stage": stage, **SPECULATIVE, "gradient_accumulation_steps": 3}
    check(ranks, [Case(spec, seed, model=f"mlp{place}", backwards=3) for seed in range(2)])


SUMMED_ROWS = {"after_backward": OFFLOADED, "speculative": SPECULATIVE}
SUMMED_DTYPES = [{}, {"dtype": "bfloat16"}, {"communication_dtype": "bfloat16"}]


@pytest.mark.check
@pytest.mark.parametrize("other_worlds", [False, True])
@pytest.mark.parametrize("schedule", SUMMED_ROWS)
@pytest.mark.parametrize("dtypes", range(3), ids=lambda k: str(SUMMED_DTYPES[k]))
def test_gradients_are_added_up_on_the_host_before_they_are_reduced(
    ranks: RankPool, dtypes: int, schedule: str, other_worlds: bool
) -> None:
    """Stage 1 with offload, several backwards; in every mode of accumulation, and after a failed backward.

    One and two ranks take turns, so that each meets every schedule, dtype and mode; the rest is in check.
    """
    modes = {"micro_steps": "backward", "multi_backward": "discard", "unmanaged": ""}
    cases = []
    for seed, (mode, disturb) in enumerate(modes.items()):
        steps = 3 if mode == "micro_steps" else 1
        row = SUMMED_ROWS[schedule] | SUMMED_DTYPES[dtypes]
        spec = {"zero_stage": 1, **row, "accumulation_mode": mode, **SMALL_BUCKETS}
        spec |= {"gradient_accumulation_steps": steps}
        world = 1 + (seed + dtypes + (schedule == "speculative") + other_worlds) % 2
        cases.append(Case(spec, seed, world_size=world, model="gpt", backwards=3, disturb=disturb))
    check(ranks, cases)


@pytest.mark.parametrize("place", PLACES)
def test_idle_parameters_beside_masters_of_another_memory_keep_their_values(
    ranks: RankPool, place: str
) -> None:
    """Masters on the device, parameters on the host and in a double buffer: a commit changes halves, and only
    parameters with a gradient get new values.
    """
    spec = {"zero_stage": 3, **SPECULATIVE, "offload_param": "cpu", "offload_ratio": 0.3}
    check(ranks, [Case(spec, 712, world_size=world, model=f"odd-together{place}") for world in (1, 2)])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("third", [0, *(pytest.param(k, marks=pytest.mark.check) for k in (1, 2))])
def test_a_few_schedules_of_every_row(ranks: RankPool, third: int, place: str) -> None:
    """`make test` has one third of them."""
    cases = [*CHOSEN, *(drawn(seed) for seed in range(SHORT))][third::3]
    late = check(ranks, [replace(case, model=f"{case.model}{place}") for case in cases])
    assert place or late > 20 * SHORT


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", range(0, LONG, 50))
def test_a_thousand_schedules(ranks: RankPool, begin: int) -> None:
    for first in range(SHORT + begin, SHORT + begin + 50, 5):
        check(ranks, [drawn(seed) for seed in range(first, first + 5)])
